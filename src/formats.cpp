// Files, and the readers and writers of their formats.
#include "trireme/formats/directory.ipp"
#include "trireme/formats/file.ipp"
#include "trireme/formats/gguf.ipp"
#include "trireme/formats/json.ipp"
#include "trireme/formats/model_files.ipp"
#include "trireme/formats/onnx.ipp"
#include "trireme/formats/safetensors.ipp"
#include "trireme/formats/weight_files.ipp"
