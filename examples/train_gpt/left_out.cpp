// What a build without some precisions has in place of their trainers (TRAIN_GPT_PRECISIONS, CMakeLists.txt).
#include "presets.hpp"
#include "trireme/core/error.hpp"

namespace {

[[noreturn, maybe_unused]] void refuse(std::string const& precision) {
  throw trireme::config_error(
      "this train_gpt was built without --precision " + precision +
      "; start it by scripts/train, which builds what is asked for, or configure its build with "
      "-DTRAIN_GPT_PRECISIONS=\"fp32;bf16;fp16;rounded\"");
}

}  // namespace

#ifdef TRAIN_GPT_WITHOUT_FP32
std::unique_ptr<trireme::any_trainer> make_fp32(preset const&, language_model const&, optimizer_choice const&,
                                                trireme::comm::any_world&) {
  refuse("fp32");
}
#endif

#ifdef TRAIN_GPT_WITHOUT_BF16
std::unique_ptr<trireme::any_trainer> make_bf16(preset const&, language_model const&, optimizer_choice const&,
                                                trireme::comm::any_world&) {
  refuse("bf16");
}
#endif

#ifdef TRAIN_GPT_WITHOUT_FP16
std::unique_ptr<trireme::any_trainer> make_fp16(preset const&, language_model const&, optimizer_choice const&,
                                                trireme::comm::any_world&) {
  refuse("fp16");
}
#endif

#ifdef TRAIN_GPT_WITHOUT_ROUNDED
std::unique_ptr<trireme::any_trainer> make_rounded(std::string const& format, preset const&, language_model const&,
                                                   optimizer_choice const&, trireme::comm::any_world&) {
  refuse(format);
}
#endif
