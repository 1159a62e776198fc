// Calls of this library, made again as somebody noted them.
#include <cstdint>

#include "winnow_native.h"

namespace {

template <class Arguments>
Arguments* as(void* arguments) {
  return static_cast<Arguments*>(arguments);
}

template <class Arguments>
Arguments* with_threads(void* arguments, int32_t threads) {
  auto* found = static_cast<Arguments*>(arguments);
  found->threads = threads;
  return found;
}

int32_t make(const winnow_call& call, int32_t threads) {
  void *arguments = call.arguments, *const *at = call.memory;
  switch (call.function) {
    case WINNOW_CALL_DECODE: return winnow_decode(with_threads<winnow_decode_args>(arguments, threads));
    case WINNOW_CALL_STEP: return winnow_step(with_threads<winnow_step_args>(arguments, threads));
    case WINNOW_CALL_ROTARY: return winnow_rotary(with_threads<winnow_rotary_args>(arguments, threads));
    case WINNOW_CALL_DELTA: return winnow_delta(with_threads<winnow_delta_args>(arguments, threads));
    case WINNOW_CALL_CONVOLVE: return winnow_convolve(with_threads<winnow_convolution_args>(arguments, threads));
    case WINNOW_CALL_SCAN: return winnow_scan(with_threads<winnow_scan_args>(arguments, threads));
    case WINNOW_CALL_LINEAR: return winnow_linear(as<winnow_linear_layer>(arguments), call.rows, at[0], at[1], threads);
    case WINNOW_CALL_LINEAR_OF_STACK:
      return winnow_linear_of_stack(as<winnow_linear_stack>(arguments), call.rows, as<int64_t>(at[0]), at[1], at[2], threads);
    case WINNOW_CALL_MIX:
      return winnow_mix(as<winnow_mixture>(arguments), call.rows, as<int64_t>(at[0]), as<float>(at[1]), at[2], at[3], threads);
    case WINNOW_CALL_GATED: return winnow_gated(as<winnow_gated_layers>(arguments), call.rows, at[0], at[1], threads);
    case WINNOW_CALL_NORMALIZE: return winnow_normalize(as<winnow_norm>(arguments), call.rows, at[0], at[1], threads);
    case WINNOW_CALL_NORMALIZE_SUMS:
      return winnow_normalize_sums(as<winnow_norm>(arguments), call.rows, at[0], at[1], at[2], at[3], threads);
    case WINNOW_CALL_NORMALIZE_GATED:
      return winnow_normalize_gated(as<winnow_norm>(arguments), call.rows, at[0], at[1], at[2], threads);
    default: return WINNOW_BAD_CALL;
  }
}

}  // namespace

int32_t winnow_repeat(const winnow_call* calls, int64_t count, int32_t threads, int64_t* done) {
  int32_t status = WINNOW_OK;
  for (*done = 0; *done < count; ++*done) {
    status = make(calls[*done], threads);
    if (status) break;
  }
  return status;
}
