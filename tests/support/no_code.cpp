// Whoever shares what the compiler has read of headers (trireme_share_headers) shares it with a target that has a source.
