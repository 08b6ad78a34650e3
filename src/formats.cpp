// Readers and writers of files.
#include "trireme/formats/json.ipp"
#include "trireme/formats/safetensors.ipp"
