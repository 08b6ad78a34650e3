#include "trireme/nn/latent_attention.hpp"

using namespace trireme;
using namespace trireme::nn;

bool const fit = fits(chain(latent_attention{}, linear{.outputs = 12}));
