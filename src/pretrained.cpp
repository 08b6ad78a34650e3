// Models in the files of others.
#include "trireme/nn/pretrained.ipp"
