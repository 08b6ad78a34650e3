// Models in Hugging Face's files.
#include "trireme/nn/pretrained.ipp"

#include "trireme/nn/bert_files.ipp"
#include "trireme/nn/convnet_files.ipp"
#include "trireme/nn/deepseek_files.ipp"
#include "trireme/nn/gguf.ipp"
#include "trireme/nn/gguf_reader.ipp"
#include "trireme/nn/onnx.ipp"
#include "trireme/nn/onnx_images.ipp"
#include "trireme/nn/onnx_layers.ipp"
#include "trireme/nn/vit_files.ipp"
