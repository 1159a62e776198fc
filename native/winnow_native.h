/* The C interface of the native kernels: what ctypes sees.
 *
 * Bump WINNOW_ABI whenever a signature or a struct below changes: the loader refuses any other number.
 */
#ifndef WINNOW_NATIVE_H
#define WINNOW_NATIVE_H

#include <stdint.h>

#define WINNOW_ABI 2
#define WINNOW_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum winnow_dtype { WINNOW_F32 = 0, WINNOW_BF16 = 1, WINNOW_F16 = 2 };

enum winnow_status { WINNOW_OK = 0, WINNOW_NO_MEMORY = 1, WINNOW_BAD_LENGTH = 2, WINNOW_UNKNOWN_ISA = 3 };

/* One call of decode attention: R rows, H KV heads, G query heads per KV head, Q new tokens. Strides count
 * elements. Nothing is retained after the call. */
struct winnow_decode_args {
  int64_t rows, heads, group, queries;
  int64_t key_dim, value_dim;
  int64_t tail_capacity;
  int32_t dtype;
  int32_t threads;
  float scaling;
  float softcap;                        /* 0: none */
  const float *sinks;                   /* [H*G] or null */
  const void *const *prefix_keys;       /* [R] of [S_r, D]; null entries only where the row has no prefix */
  const void *const *prefix_values;     /* [R] of [S_r, Dv] */
  const int64_t *const *prefix_starts;  /* [R] of [H]: head h reads slots starts[h] to stops[h] of the row's */
  const int64_t *const *prefix_stops;   /* [R] of [H]; both null for a row without a prefix */
  const void *tail_keys;                /* [R, H, C, D] */
  const void *tail_values;              /* [R, H, C, Dv] */
  const int64_t *tail_lengths;          /* [R], each in 0..C, new tokens included */
  const void *query;                    /* [R, H*G, Q, D], last axis contiguous */
  int64_t query_row_stride, query_head_stride, query_token_stride;
  void *output;                         /* [R, Q, H*G, Dv] contiguous */
};

WINNOW_EXPORT int32_t winnow_abi(void);

/* Decode attention; returns a winnow_status. Safe to call from several threads at once. */
WINNOW_EXPORT int32_t winnow_decode(const struct winnow_decode_args *args);

/* The instruction set in use: "avx512", "avx2" or "portable". */
WINNOW_EXPORT const char *winnow_isa(void);

/* Choose an instruction set by name, for tests; WINNOW_UNKNOWN_ISA when this machine lacks it. */
WINNOW_EXPORT int32_t winnow_select_isa(const char *name);

/* Read `bytes` bytes once, vectorised, prefetched and threaded as the kernels are, and return the sum of
 * their 32-bit words: the speed of light against which the kernels are measured. */
WINNOW_EXPORT int64_t winnow_read_sum(const void *data, int64_t bytes, int32_t threads);

#ifdef __cplusplus
}
#endif
#endif
