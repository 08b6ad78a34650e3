// Files, and readers and writers of what stands in them.
#include "trireme/formats/directory.ipp"
#include "trireme/formats/file.ipp"
#include "trireme/formats/json.ipp"
#include "trireme/formats/model_files.ipp"
#include "trireme/formats/safetensors.ipp"
#include "trireme/formats/weight_files.ipp"
