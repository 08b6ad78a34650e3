// The source of the targets that only read headers (trireme_share_headers).
