// Which kernels multiply rows as matrices.
#pragma once

#include <cstdint>
#include <limits>

#include "linear/contract.hpp"
#include "simd/element.hpp"

#ifdef __AMX_INT8__
#include "linear/amx/few_rows.hpp"
#include "linear/amx/many_rows.hpp"
#include "linear/amx/several_rows.hpp"
#elif defined(WINNOW_ZEN)
#include "linear/avx512/byte_rows.hpp"
#include "linear/avx512/paired_rows.hpp"
#elif defined(__AVX2__) && !defined(WINNOW_PORTABLE)
#include "linear/avx/rounded_rows.hpp"
#ifndef __AVX512F__
#include "linear/avx2/level_rows.hpp"
#define WINNOW_BY_LEVELS
#endif
#endif

namespace winnow {
namespace {

// Those of a weight in the dtype of the inputs, of one in 8 bits, and of 4 to 6; null where fp32 keeps more digits, and where
// torch multiplies bf16 as fast.
template <class T>
constexpr ManyRowsKernel kManyRows = {};
template <class T>
constexpr ManyRowsKernel kManyRowsInt8 = {};
template <class T>
constexpr ManyRowsKernel kManyRowsFewBits = {};
#ifdef __AMX_INT8__
template <>
constexpr ManyRowsKernel kManyRows<Bf16> = {lay_row_in_tiles, tiled_row_bytes, rows_in_tiles,  tile_scratch_bytes,
                                            1,                kRowsOfSums,     kOutputsInTiles};
template <>
constexpr ManyRowsKernel kManyRowsInt8<Bf16> = kManyRows<Bf16>;
template <>
constexpr ManyRowsKernel kManyRowsFewBits<Bf16> = kManyRows<Bf16>;
#elif defined(WINNOW_ZEN)
template <>
constexpr ManyRowsKernel kManyRows<Bf16> = {nullptr, nullptr, paired_rows, paired_scratch_bytes, 2, kRowsOfSums};
template <>
constexpr ManyRowsKernel kManyRowsInt8<Bf16> = {round_row_to_bytes, byte_row_bytes, rows_in_bytes,
                                                byte_scratch_bytes, 1,              kRowsOfSums};
template <>
constexpr ManyRowsKernel kManyRowsFewBits<Bf16> = kManyRowsInt8<Bf16>;
#elif defined(__AVX2__) && !defined(WINNOW_PORTABLE)
template <>
constexpr ManyRowsKernel kManyRows<Bf16> = {round_row<Bf16>,       rounded_row_bytes, rows_in_whole_numbers<Bf16>,
                                            rounded_scratch_bytes, 1,                 std::numeric_limits<int64_t>::max()};
template <>
constexpr ManyRowsKernel kManyRowsInt8<Bf16> = kManyRows<Bf16>;
template <>
#ifdef WINNOW_BY_LEVELS
constexpr ManyRowsKernel kManyRowsFewBits<Bf16> = {round_to_levels<int8_t>,     laid_row_bytes<InputLevels<int8_t>>,
                                                   rows_by_levels<int8_t>,      level_scratch_bytes<int8_t>,
                                                   1,                           kRowsOfSums};
#else
constexpr ManyRowsKernel kManyRowsFewBits<Bf16> = kManyRows<Bf16>;
#endif
#endif

// Those of fewer rows, of a weight in the dtype of the inputs, of one in 8 bits, and of 4 to 6; null where vectors multiply few
// rows as fast.
template <class T>
constexpr ManyRowsKernel kSeveralRows = {};
template <class T>
constexpr ManyRowsKernel kSeveralRowsInt8 = {};
template <class T>
constexpr ManyRowsKernel kSeveralRowsFewBits = {};
template <class T>
constexpr FewBitsFunctions kFewBitsInTiles = {};
#ifdef __AMX_INT8__
template <>
constexpr ManyRowsKernel kSeveralRows<Bf16> = {lay_column,    column_bytes,     several_rows<Bf16>, no_scratch_bytes,
                                               kTileChannels, kMostSeveralRows, kOutputsInTiles,    kFewestSeveralRows};
template <>
constexpr ManyRowsKernel kSeveralRowsInt8<Bf16> = {lay_column,    column_bytes,     several_rows<Int8>, no_scratch_bytes,
                                                   kTileChannels, kMostSeveralRows, kOutputsInTiles,    kFewestRowsOfBytes};
template <>
constexpr FewBitsFunctions kFewBitsInTiles<Bf16> = {{few_rows_in_tiles<4>, few_rows_in_tiles<5>, few_rows_in_tiles<6>},
                                                    kOutputsAtOnce};
#elif defined(WINNOW_BY_LEVELS)
template <>
constexpr ManyRowsKernel kSeveralRowsFewBits<Bf16> = {
    round_to_levels<int16_t>,     laid_row_bytes<InputLevels<int16_t>>, rows_by_levels<int16_t>,
    level_scratch_bytes<int16_t>, 1,                                    kMostOf16Bits,
    kOutputsAtOnce,               1};
#endif

}  // namespace
}  // namespace winnow
