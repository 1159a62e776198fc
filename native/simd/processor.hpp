// What is known of the processor besides its instructions.
#pragma once

namespace winnow {
namespace {

// The generation of AMD's processors, with AVX-512 BF16, that kernels are for; 0 where they are for others. What holds for
// all of them is kZen: they multiply pairs of 16 bits as often as numbers of fp32.
#ifdef WINNOW_ZEN
constexpr int kZenGeneration = WINNOW_ZEN;
#else
constexpr int kZenGeneration = 0;
#endif
constexpr bool kZen = kZenGeneration > 0;

}  // namespace
}  // namespace winnow
