// What a server of a language model reads and writes.
#include "trireme/serve/openai.ipp"
