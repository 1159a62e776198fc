// What is known of the processor besides its instructions.
#pragma once

namespace winnow {
namespace {

// True in kernels for AMD's processors, which multiply pairs of 16 bits as often as numbers of fp32.
#ifdef WINNOW_ZEN
constexpr bool kZen = true;
#else
constexpr bool kZen = false;
#endif

}  // namespace
}  // namespace winnow
