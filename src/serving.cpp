// What servers read and write.
#include "trireme/serve/kserve.ipp"
#include "trireme/serve/openai.ipp"
