/* The C interface of the native kernels, for ctypes.
 *
 * src/winnow/kernels/native_args.py mirrors the structs and constants below; the loader compares all that
 * winnow_contract lists. Bump WINNOW_ABI whenever a signature or a meaning changes.
 */
#ifndef WINNOW_NATIVE_H
#define WINNOW_NATIVE_H

#include <stdint.h>

#define WINNOW_ABI 25
#define WINNOW_SCALE_GROUP 32 /* channels of a value, or slots of keys, that share a scale and a zero */
#define WINNOW_START_STEP 32  /* where rows differ in length, the beginning of every 32nd is known */
#define WINNOW_BLOCK_BYTES 16 /* of a block of numbers of 4 or 2 bits; of 1 bit half as many */
#define WINNOW_LINEAR_OUTPUTS 64 /* that lie beside each other in a weight of 4, 5 or 6 bits */
#define WINNOW_DRAWS 256      /* numbers that a random recovery draws from, a power of two */
#define WINNOW_DELTA_KEYS 256 /* channels of a key that the delta rule knows, at most */
#define WINNOW_TAPS 8         /* of a convolution, at most */
#define WINNOW_SCAN_STATE 256 /* numbers of a channel's state that the state scan knows, at most */
#define WINNOW_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum winnow_dtype { WINNOW_F32 = 0, WINNOW_BF16 = 1, WINNOW_F16 = 2 };

enum winnow_status {
  WINNOW_OK = 0,
  WINNOW_NO_MEMORY = 1,
  WINNOW_BAD_LENGTH = 2,  /* a tail is longer than its capacity */
  WINNOW_UNKNOWN_ISA = 3,
  WINNOW_BAD_PART = 4,    /* sizes of a part contradict each other, or its channels the head's */
  WINNOW_BAD_LAYER = 5,   /* a row is for a layer that there is not */
  WINNOW_BAD_GATE = 6,    /* an activation that there is not, or numbers that it is not defined for */
  WINNOW_BAD_CALL = 7,    /* a function that is not called again */
  WINNOW_BAD_SIZE = 8     /* more channels or taps than kernels know, or a state of too few inputs */
};

/* Functions of which winnow_repeat makes calls. */
enum winnow_function {
  WINNOW_CALL_DECODE = 0,
  WINNOW_CALL_STEP = 1,
  WINNOW_CALL_LINEAR = 2,
  WINNOW_CALL_LINEAR_OF_STACK = 3,
  WINNOW_CALL_MIX = 4,
  WINNOW_CALL_GATED = 5,
  WINNOW_CALL_NORMALIZE = 6,
  WINNOW_CALL_NORMALIZE_SUMS = 7,
  WINNOW_CALL_ROTARY = 8,
  WINNOW_CALL_DELTA = 9,
  WINNOW_CALL_CONVOLVE = 10,
  WINNOW_CALL_NORMALIZE_GATED = 11,
  WINNOW_CALL_SCAN = 12
};

enum winnow_activation {
  WINNOW_SWISH = 0,     /* x / (1 + exp(-alpha * x)): silu where alpha is 1 */
  WINNOW_GELU_TANH = 1, /* x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2 */
  WINNOW_GELU = 2       /* x * (1 + erf(x / sqrt(2))) / 2 */
};

enum winnow_scaling {
  WINNOW_UNSCALED = 0,
  WINNOW_PER_SLOT = 1,
  WINNOW_GROUPED = 2,       /* with zeros, of WINNOW_SCALE_GROUP slots (keys) or channels (values) */
  WINNOW_CHANNEL_GROUPS = 3 /* without zeros, of scale_group neighboring channels of a slot */
};

enum winnow_statistic {
  WINNOW_PRUNED_SIZES = 0,   /* mean of the pruned sizes */
  WINNOW_PRUNED_NUMBERS = 1, /* mean of the pruned numbers, with their signs */
  WINNOW_MEAN = 2,           /* mean of all sizes */
  WINNOW_MOMENTS = 3,        /* mean and standard deviation of all sizes */
  WINNOW_PRUNED_RMS = 4,     /* root mean square of the pruned sizes */
  WINNOW_PRUNED_MOMENTS = 5  /* mean and standard deviation of the pruned sizes, and the largest of them */
};

enum winnow_recovery {
  WINNOW_DEGENERATE = 0,
  WINNOW_GAUSSIAN = 1,
  WINNOW_EXPONENTIAL = 2,
  WINNOW_TRUNCATED_GAUSSIAN = 3,
  WINNOW_TRUNCATED_EXPONENTIAL = 4,
  WINNOW_CONSTANT = 5
};

/* Keys or values of the S slots of a part; src/winnow/kernels/formats says what the arrays mean. Nothing is read
 * beyond the sizes given, and all but `data` may be null where a format does not have it. */
struct winnow_rows {
  const void *data;            /* entries: of the model's dtype or packed integers */
  int64_t data_bytes;
  const void *scales;          /* of the model's dtype */
  const void *zeros;
  const int16_t *channels;     /* [H, T] */
  const uint8_t *masks;        /* [S, ceil(dim / 8)] */
  const void *stats;           /* [S, stats_width] of the model's dtype */
  const uint8_t *signs;
  int64_t signs_bytes;
  const float *inverse_norms;  /* [H, dim] */
  const float *draws;          /* [WINNOW_DRAWS], ascending */
  const void *means;           /* [H, dim] of the model's dtype: what was subtracted from the keys of every head */
  const void *spreads;         /* the same, by what the rest was divided then */
  const int64_t *starts;       /* [ceil(S / WINNOW_START_STEP), 2] where slots keep different numbers of entries */
  int64_t kept;                /* T, entries of a slot; with masks, which tell how many, all channels */
  int64_t row_bytes;           /* of data and of signs from slot to slot; 0 with starts */
  int64_t sign_row_bytes;
  int32_t bits;                /* 16: as they are; 8, 6, 4, 3, 2 */
  int32_t scaling;
  int32_t stats_width;
  int32_t recovery;
  uint32_t seed;
  float fill;                  /* of WINNOW_CONSTANT, which has no stats */
  int32_t rotated;             /* 1: rows are those after a Walsh-Hadamard transform */
  int32_t scale_group;         /* 32 or 64 with WINNOW_CHANNEL_GROUPS */
};

/* A prefix, or the slots of a prefix that share a format. */
struct winnow_part {
  const int64_t *starts, *stops;      /* [H]: head h reads slots starts[h] to stops[h] */
  int64_t slots;                      /* S */
  int32_t packed;                     /* 0: data is [S, D] and [S, Dv] in the model's dtype, and nothing else is set */
  struct winnow_rows keys, values;
};

/* What heads of multi-head latent attention make of the latents of D channels that they share: head h the plain channels
 * W_k,h·c of its keys, and its values W_v,h·c. */
struct winnow_latent {
  int64_t plain_dim, output_dim;        /* channels of W_k,h·c and of W_v,h·c, each at least 1 */
  const void *weight;                   /* [G, plain_dim + output_dim, D] contiguous: W_k,h above W_v,h */
  const void *scales;                   /* [G, plain_dim + output_dim] of the model's dtype where bits is 8, else null */
  int32_t bits;                         /* of the weight: 16: as it is, in the model's dtype; 8: signed whole numbers */
};

/* Buffers of rows: of the tokens that a row ever saw, the one with the number t lies in column t % window, and those before the
 * last `window` are gone. A query sees so many tokens, its own among them. */
struct winnow_ring {
  const void *keys, *values;            /* [R, H, C, D] and [R, H, C, Dv] */
  int64_t capacity, window;             /* C, 1 <= window */
  const int64_t *seen;                  /* [R] */
};

/* One call of decode attention: R rows, H KV heads, G query heads for each (group_size), Q new tokens. Strides count
 * elements. Rows whose parts are the same memory read it together, once. Nothing is retained after the call.
 *
 * With `ring`, the tail is the Q new tokens of every row, which the ring does not have.
 * With `latent`, there is no ring, H is 1, keys are latents and values are the rotated channels of the same tokens' keys, which
 * all heads share. A query then has plain_dim + Dv channels, and an output output_dim. */
struct winnow_decode_args {
  int64_t rows, heads, group_size, queries;
  int64_t key_dim, value_dim;
  int64_t tail_capacity;
  int32_t dtype;
  int32_t threads;
  float scaling;
  float softcap;                        /* 0: none */
  const float *sinks;                   /* [H*G] or null */
  const struct winnow_part *parts;      /* the parts of all rows, row after row */
  const int64_t *part_bounds;           /* [R + 1]: row r has parts part_bounds[r] to part_bounds[r + 1] */
  const void *tail_keys;                /* [R, H, C, D] */
  const void *tail_values;              /* [R, H, C, Dv] */
  const int64_t *tail_lengths;          /* [R], each in 0..C, new tokens included */
  const void *query;                    /* [R, H*G, Q, D], last axis contiguous */
  int64_t query_row_stride, query_head_stride, query_token_stride;
  void *output;                         /* [R, Q, H*G, Dv] contiguous */
  const struct winnow_latent *latent;   /* or null */
  const struct winnow_ring *ring;       /* or null */
};

/* S rows whose largest entries are kept; src/winnow/kernels/pruning_reference.py says what the arrays mean. Nothing
 * is retained after a call. */
struct winnow_prune_args {
  const void *rows;            /* [S, D], one row every row_stride elements */
  int64_t slots, dim, row_stride;
  const float *inverse_norms;  /* [H, D] or null: an entry's size is its magnitude divided by that of its channel's */
  const int64_t *head;         /* [S], used with inverse_norms */
  int64_t most;                /* channels that a row keeps, at most (with levels) or, without a share, exactly */
  const int64_t *levels;       /* ascending, or null: a row keeps the first whose bound is no less than it needs */
  const int64_t *bounds;       /* ascending, one for every level */
  int64_t level_count;
  double share;                /* negative: none; else the fewest channels whose sizes reach this share of the row's */
  int32_t squared;             /* the share is one of the squares of sizes */
  const int64_t *starts;       /* [S, 2] or null where all rows keep `most`: where its kept and sign bytes begin */
  uint8_t *masks;              /* [S, ceil(D / 8)] */
  int64_t *counts;             /* [S] */
  float *stats;                /* [S], [S, 2] for WINNOW_MOMENTS, [S, 3] for WINNOW_PRUNED_MOMENTS */
  void *kept;                  /* of the rows' dtype */
  uint8_t *signs;              /* or null */
  int32_t dtype;
  int32_t statistic;
  int32_t threads;
};

/* S rows that a Walsh-Hadamard transform turns; src/winnow/kernels/formats/hadamard.py defines it to the bit. */
struct winnow_rotate_args {
  const void *rows;            /* [S, D] contiguous */
  int64_t slots, dim;
  float *output;               /* [S, D] contiguous */
  int32_t dtype;               /* of the rows */
  int32_t threads;
};

/* Numbers of new tokens [R, H, Q, D] and the contiguous buffer [R, H, C, D] that they are copied into; bytes. */
struct winnow_columns {
  const void *source;          /* last axis contiguous */
  int64_t row_stride, head_stride, token_stride;
  void *target;
  int64_t bytes;               /* of D numbers */
  void *spare;                 /* [R, H, Q, D], for what the new ones take the place of, of a ring [R, H, D] of the last one;
                                * or null: that is lost */
};

/* Q new tokens of R rows and H heads, copied behind those that buffers of C tokens hold; or, where buffers are rings, in the
 * place of the oldest: of those that a row ever saw, the one with the number t goes into column t % window. */
struct winnow_append_args {
  int64_t rows, heads, tokens, capacity;
  struct winnow_columns first, second; /* second.target may be null: there is one buffer */
  int64_t *lengths;            /* [R] tokens that rows hold, which grow by Q; or null: all hold `column`, which stays */
  int64_t column;
  int64_t *seen;               /* [R] tokens that rows saw, which grow by Q; lengths become a ring's. Null: no rings */
  int64_t window;              /* 1 <= window of a ring; columns from C on have no room */
};

/* Q new tokens of every row, one where there is a ring of keys or of queries: copied behind those of the tail, then attended
 * from. What changes from step to step comes first; the sources, the query, the output and the threads inside the rest are set
 * from it. */
struct winnow_step_args {
  const void *query;           /* [R, H*G, Q, D], as the strides of decode say, and of queries where there is a ring */
  const void *keys, *values;   /* [R, H, Q, D] and [R, H, Q, Dv], as the strides of tokens say */
  void *output;                /* [R, Q, H*G, Dv] contiguous */
  int64_t column;              /* of the ring of queries */
  int32_t threads;
  struct winnow_append_args tokens;  /* into the tail of decode, with its lengths */
  struct winnow_append_args queries; /* the query into a ring without lengths; no target: there is none */
  struct winnow_decode_args decode;
};

/* Causal attention of the last Q of N tokens of one prompt: H KV heads, G query heads for each (group_size). Strides
 * count elements; numbers of a head lie side by side. */
struct winnow_prefill_args {
  int64_t heads, group_size, queries, tokens; /* 1 <= Q <= N < 2^24 */
  int64_t window;              /* of the last tokens, a query's own with them, that it sees; 0, or N and more: all */
  int64_t key_dim, value_dim;
  const void *query;           /* [H*G, Q, D] */
  const void *keys, *values;   /* [H, N, D] and [H, N, Dv] */
  int64_t query_head_stride, query_token_stride;
  int64_t key_head_stride, key_token_stride;
  int64_t value_head_stride, value_token_stride;
  const float *sinks;          /* [H*G] or null */
  void *output;                /* [Q, H*G, Dv] contiguous, or null, as values then may be */
  float *paid;                 /* [H, N] contiguous: what all queries paid each token, mean over the group; or null */
  float scaling;
  float softcap;               /* 0: none */
  int32_t dtype;               /* of all but sinks and paid */
  int32_t threads;
};

/* A linear layer. Everything is contiguous, and of one dtype but for weights of few bits. Those of 8 bits are signed whole
 * numbers, with a scale for every output. Of 4, 5 and 6 bits there are inputs and outputs in multiples of WINNOW_SCALE_GROUP
 * and WINNOW_LINEAR_OUTPUTS. As many outputs as winnow_nibble_outputs tells, B, are a block, whose groups of WINNOW_SCALE_GROUP
 * inputs lie one after another. A group begins with the low four bits: input by input, B / 2 bytes, the lower halves of which
 * are the first outputs, and the higher ones those from B / 2 on.
 *
 * Of 5 and 6 bits, B is 64. Behind the low bits a group has the bits above, of a number h = 1 or 2 of them: of P = 4 / h pairs
 * of inputs beside each other, B / 2 bytes for each input of a pair. The byte of an output, and of that B / 2 behind it, is its
 * place among them; two outputs of the first input, from an even one on, are followed by the same two of the second. The pair p
 * of the P has its bits of the first output from bit 4 - 4 * (p % 2) + 2 * (p / 2) of a byte on, and next those of the other.
 *
 * A number n of 4 and 5 bits stands for (n - 8) * scale + middle and (n - 16) * scale + middle, and WINNOW_SCALE_GROUP inputs
 * share a pair; of 6 bits, for (n - 32) * scale, which half as many inputs share. */
struct winnow_linear_layer {
  int64_t inputs, outputs;     /* 1 <= inputs */
  const void *weight;          /* [outputs, inputs] */
  const void *scales;          /* 8 bits: [outputs]; 6: [inputs / 16, outputs]; 5 and 4: [inputs / 32, outputs, 2]; else null */
  const void *bias;            /* [outputs] or null */
  int32_t bits;                /* of the weight: 16: as it is; 8; 6; 5; 4 */
  int32_t dtype;
};

/* Linear layers of one shape, bits and dtype, whose parameters lie behind each other: those of a mixture's experts. */
struct winnow_linear_stack {
  struct winnow_linear_layer first;
  int64_t layers;
  int64_t weight_bytes, scales_bytes, bias_bytes;  /* from those of a layer to those of the next */
};

/* A gate: outputs of one layer, gate, and of another, up -> activation(min(gate, limit)) * (clamp(up, -limit, limit) + offset).
 * Activations are rounded to the dtype, and so are products. */
struct winnow_gate {
  int32_t activation;          /* a winnow_activation */
  float alpha;                 /* finite and above 0 */
  float limit;                 /* at least 0; infinite where there is none */
  float offset;
};

/* Experts of one dtype, as many in both stacks, of which every token has `chosen`. A layer of `enter` has twice as many outputs
 * as one of `leave` has inputs: those of a gate, and those that it gates. Where these lie one behind the other and `enter` has
 * 4, 5 or 6 bits, they are whole blocks of WINNOW_LINEAR_OUTPUTS. */
struct winnow_mixture {
  struct winnow_linear_stack enter, leave;
  int64_t chosen;
  struct winnow_gate gate;
  int32_t interleaved;         /* 1: an output of the gate, one that it gates, and so on; 0: first all of the gate */
};

/* Two linear layers of as many inputs and outputs, and one dtype. */
struct winnow_gated_layers {
  struct winnow_linear_layer gate, up;
  struct winnow_gate by;
};

/* A norm by the root of the mean of squares: rows over that root times a weight, rounded to their dtype. */
struct winnow_norm {
  int64_t width;               /* 1 <= width */
  const void *weight;          /* [width] contiguous */
  float epsilon;               /* added to the mean of squares */
  float offset;                /* added to the weight; 0 where rounds_first */
  int32_t rounds_first;        /* 1: rows are rounded before they meet the weight, too */
  int32_t dtype;
};

/* Queries or keys, whose channels, dim and the rest, are beside each other; strides are in elements. */
struct winnow_rotary_rows {
  const void *source;          /* [rows, heads, tokens, dim + rest] */
  void *target;                /* the same, without an overlap */
  int64_t heads;
  int64_t source_row, source_head, source_token;
  int64_t target_row, target_head, target_token;
};

/* Pairs of channels that are a point: in the source, and in the target. */
enum winnow_points {
  WINNOW_HALVES = 0,      /* i and i + dim / 2, in both */
  WINNOW_INTERLEAVED = 1, /* neighbors 2 i and 2 i + 1, which have the angle i; in the target i and i + dim / 2 */
  WINNOW_COMPLEX = 2      /* neighbors in both. Angles are complex numbers of fp32, so dim of fp32 in `cos` for each token;
                           * nothing is rounded before the end */
};

/* Rotary embedding: points of a token are turned by its angles. */
struct winnow_rotary_args {
  int64_t rows, tokens, dim;   /* dim is even */
  int64_t rest;                /* channels behind these, which stay as they are */
  int64_t angles;              /* of a token: dim; or dim / 2, where both channels of a pair have the same */
  const void *cos, *sin;       /* [rows or 1, tokens, angles] contiguous */
  int64_t angles_row;          /* elements from a row's angles to the next row's; 0 where all rows have the same */
  struct winnow_rotary_rows queries, keys;
  int32_t points;              /* a winnow_points */
  int32_t dtype;
  int32_t threads;
};

/* Gated delta rule and Kimi Delta Attention: states of linear attention, which tokens change one after another, and what they
 * read. Strides are in elements; channels are beside each other, and heads behind each other. */
struct winnow_delta_args {
  int64_t rows, tokens;
  int64_t key_heads, value_heads;      /* the second a multiple of the first */
  int64_t key_dim, value_dim;          /* 1 <= key_dim <= WINNOW_DELTA_KEYS */
  const void *queries, *keys;          /* [rows, tokens, key_heads, key_dim] */
  const void *values;                  /* [rows, tokens, value_heads, value_dim] */
  int64_t query_row, query_token, key_row, key_token, value_row, value_token;
  const float *decays;                 /* [rows, tokens, value_heads] contiguous: logarithms, at most 0 */
  const void *rates;                   /* [rows, tokens, value_heads] contiguous, of dtype */
  float *states;                       /* [rows, value_heads, key_dim, value_dim] contiguous, changed */
  void *outputs;                       /* [rows, tokens, value_heads, value_dim] contiguous */
  int32_t per_channel;                 /* 1: decays are [rows, tokens, value_heads, key_dim], of every channel of a key */
  int32_t normalized;                  /* 1: queries and keys are divided by their length first */
  int32_t dtype;
  int32_t threads;
};

/* Causal convolution of every channel by itself, with few taps. */
struct winnow_convolution_args {
  int64_t rows, tokens, channels;
  int64_t taps;                /* 2 <= taps <= WINNOW_TAPS */
  const void *inputs;          /* [rows, tokens, channels], channels beside each other */
  int64_t input_row, input_token;
  void *states;                /* [rows, channels, state_length] contiguous: inputs before the first, the latest last, which the
                                * tokens move on; or null: those are zeros, and nothing is kept */
  int64_t state_length;        /* at least taps - 1 */
  const void *weight;          /* [channels, taps] contiguous, the latest input's last */
  const void *bias;            /* [channels] or null */
  void *outputs;               /* [rows, tokens, channels] contiguous, without an overlap */
  int32_t silu;                /* 1: x / (1 + exp(-x)) of sums that were rounded to the dtype */
  int32_t dtype;
  int32_t threads;
};

/* State scan of Mamba-2: states of heads, which tokens change one after another, and what they read. Strides are in elements;
 * channels are beside each other, and heads and groups behind each other. */
struct winnow_scan_args {
  int64_t rows, tokens;
  int64_t heads, groups;       /* the first a multiple of the second: so many neighboring heads share what enters and leaves */
  int64_t dim, state_dim;      /* channels of a head, and numbers of each one's state: 1 <= state_dim <= WINNOW_SCAN_STATE */
  const void *inputs;          /* [rows, tokens, heads, dim]: x */
  const void *steps;           /* [rows, tokens, heads]: dt */
  const void *enter, *leave;   /* [rows, tokens, groups, state_dim]: B and C */
  int64_t input_row, input_token, step_row, step_token, enter_row, enter_token, leave_row, leave_token;
  const float *rates;          /* [heads]: A, at most 0 */
  const float *biases;         /* [heads] added to steps, or null */
  const float *through;        /* [heads]: D, or null */
  float *states;               /* [rows, heads, dim, state_dim] contiguous, changed */
  void *outputs;               /* [rows, tokens, heads, dim] contiguous, of dtype or fp32 */
  float least, most;           /* of a step */
  int32_t softplus;            /* 1: steps go through log(1 + exp(x)) before they are limited */
  int32_t outputs_f32;         /* 1: outputs are fp32, whatever the dtype */
  int32_t dtype;
  int32_t threads;
};

struct winnow_constant {
  const char *name;
  int64_t value;
};

/* The constants above that callers rely on, and the sizes of the structs, by name; the last name is null. */
WINNOW_EXPORT const struct winnow_constant *winnow_contract(void);

/* Has work be done by the threads of the process's OpenMP: its GOMP_parallel and omp_get_thread_num. The first call
 * counts. Without it, and in a child of fork(), the library has workers of its own. */
WINNOW_EXPORT void winnow_lend_threads(void (*team)(void (*task)(void *), void *data, unsigned threads, unsigned flags),
                                       int (*number)(void));

/* Decode attention; returns a winnow_status. Safe to call from several threads at once. */
WINNOW_EXPORT int32_t winnow_decode(const struct winnow_decode_args *args);

/* Chooses the channels that every row keeps: writes masks, counts and stats. Returns a winnow_status. */
WINNOW_EXPORT int32_t winnow_prune(const struct winnow_prune_args *args);

/* Copies what the masks keep, and the signs of the rest: reads rows and masks, writes kept and signs. */
WINNOW_EXPORT int32_t winnow_take(const struct winnow_prune_args *args);

/* Rows in the coordinates in which they are packed. Returns a winnow_status. */
WINNOW_EXPORT int32_t winnow_rotate(const struct winnow_rotate_args *args);

/* Copies new tokens into buffers; WINNOW_BAD_LENGTH, with nothing written, where a row has no room for them. */
WINNOW_EXPORT int32_t winnow_append(const struct winnow_append_args *args);

/* Appends and attends; returns a winnow_status. WINNOW_BAD_LENGTH: nothing was written, as there is no room. After other
 * errors the new token is held. */
WINNOW_EXPORT int32_t winnow_step(struct winnow_step_args *args);

/* Attention over a dense prompt. Returns a winnow_status. Safe to call from several threads at once. */
WINNOW_EXPORT int32_t winnow_prefill(const struct winnow_prefill_args *args);

/* 1 where keys and values of a prompt of a dtype that so many queries of a KV head meet, with an output, are laid anew first:
 * as tiles of bf16 with AMX where there is no window (0), else as panels with AVX2, but not on AMD's processors with AVX-512
 * BF16. */
WINNOW_EXPORT int32_t winnow_prefill_lays(int32_t dtype, int64_t queries, int64_t window);

/* Inputs [rows, inputs] of a linear layer -> its outputs [rows, outputs], both contiguous and of its dtype: products are
 * summed up in fp32, and rounded once. Where winnow_multiplies_many says so, numbers of many rows become whole ones: inputs
 * keep 14 bits of the largest of 64 beside each other, and the weight 13. On AMD's processors with AVX-512 BF16, only inputs do
 * that meet a weight of few bits, and 127 steps are the largest. With AMX they stay, and what a weight of less than 8 bits
 * stands for is rounded to bf16.
 * WINNOW_UNKNOWN_ISA where there is no kernel for so few bits: of 4 where winnow_nibble_outputs is 0, of 5 and 6 where it is
 * not 64; WINNOW_NO_MEMORY where many rows find none. */
WINNOW_EXPORT int32_t winnow_linear(const struct winnow_linear_layer *layer, int64_t rows, const void *inputs,
                                    void *outputs, int32_t threads);

/* The same for rows of which each is for one layer of a stack: layers [rows] has its number. Rows beside each other that are
 * for the same layer read its weight once. WINNOW_BAD_LAYER, with nothing written, for a number that no layer has. */
WINNOW_EXPORT int32_t winnow_linear_of_stack(const struct winnow_linear_stack *stack, int64_t rows, const int64_t *layers,
                                             const void *inputs, void *outputs, int32_t threads);

/* Inputs [tokens, width] -> outputs [tokens, width]: the sum of what the experts [tokens, chosen] of a token give, each times
 * its weight [tokens, chosen]: what leaves of what is gated of what enters. These and what an expert gives are rounded to the
 * dtype, and the sum is once. It is made for few tokens. Returns as winnow_linear_of_stack, or WINNOW_BAD_GATE, or
 * WINNOW_NO_MEMORY. */
WINNOW_EXPORT int32_t winnow_mix(const struct winnow_mixture *mixture, int64_t tokens, const int64_t *experts,
                                 const float *weights, const void *inputs, void *outputs, int32_t threads);

/* 1 where winnow_linear is made for many rows of a dtype, too. */
WINNOW_EXPORT int32_t winnow_multiplies_many(int32_t dtype);

/* Outputs that lie beside each other in weights of few bits as winnow_linear reads them for a dtype: 64 for bf16 on processors
 * with AVX-512, 32 on those with AVX2 alone, else 0. */
WINNOW_EXPORT int64_t winnow_nibble_outputs(int32_t dtype);

/* Inputs of both layers -> the outputs of one, which are rounded to the dtype, gated by the other's, which are, too. Returns as
 * winnow_linear, or WINNOW_BAD_GATE, or WINNOW_NO_MEMORY. */
WINNOW_EXPORT int32_t winnow_gated(const struct winnow_gated_layers *layers, int64_t rows, const void *inputs,
                                   void *outputs, int32_t threads);

/* The outputs first to last - 1 of a weight of 4 bits -> [inputs, last - first] in bf16, each number rounded once; both are
 * multiples of WINNOW_LINEAR_OUTPUTS, of which as many lie beside each other. WINNOW_UNKNOWN_ISA where there is no kernel for
 * it: of other bits and dtypes, and on processors without AVX-512. */
WINNOW_EXPORT int32_t winnow_write_out(const struct winnow_linear_layer *layer, int64_t first, int64_t last, void *to,
                                       int32_t threads);

/* Rows [rows, width] -> normalized, both contiguous and of the norm's dtype, without an overlap. Returns a winnow_status. */
WINNOW_EXPORT int32_t winnow_normalize(const struct winnow_norm *norm, int64_t rows, const void *inputs, void *outputs,
                                       int32_t threads);

/* The same of the sums of two inputs, which are rounded to the dtype and written, too: to memory of their own, or that of
 * either input. */
WINNOW_EXPORT int32_t winnow_normalize_sums(const struct winnow_norm *norm, int64_t rows, const void *inputs,
                                            const void *others, void *sums, void *outputs, int32_t threads);

/* The same of inputs; a number that was rounded is multiplied by silu of its gate in fp32, and rounded again. Gates lie as rows
 * do, without an overlap either. */
WINNOW_EXPORT int32_t winnow_normalize_gated(const struct winnow_norm *norm, int64_t rows, const void *inputs,
                                             const void *gates, void *outputs, int32_t threads);

/* Queries and keys -> turned: x cos - y sin, y cos + x sin for channels x and y, each product rounded to the dtype. Returns a
 * winnow_status. */
WINNOW_EXPORT int32_t winnow_rotary(const struct winnow_rotary_args *args);

/* Token by token, and value head by value head: its state times exp(decay); then, to each channel of the key, that channel
 * times what the value differs from what the state has for the key, times the rate; the output is what the state then has for
 * the query over the root of key_dim. Returns a winnow_status: WINNOW_BAD_SIZE for larger keys. */
WINNOW_EXPORT int32_t winnow_delta(const struct winnow_delta_args *args);

/* Sums of the last inputs of every channel, each times its tap, in fp32. Returns a winnow_status: WINNOW_BAD_SIZE for
 * another number of taps, and for states that hold too few inputs. */
WINNOW_EXPORT int32_t winnow_convolve(const struct winnow_convolution_args *args);

/* Token by token, and head by head: a step t of steps + biases, which are rounded to the dtype; the state of each channel times
 * exp(t A), plus t x B; the output is the product of that state and C, plus D x. Returns a winnow_status: WINNOW_BAD_SIZE for
 * larger states. */
WINNOW_EXPORT int32_t winnow_scan(const struct winnow_scan_args *args);

/* A call of a function, with what it takes: arguments, and, of rows, how many and where they are, in the order in which they
 * are declared. */
struct winnow_call {
  int32_t function;  /* a winnow_function */
  int64_t rows;      /* or tokens, of a mixture */
  void *arguments;   /* those with threads in them have others afterwards */
  void *memory[4];
};

/* Makes calls one after another, with so many threads, up to the first that fails, and writes how many went well to `done`.
 * Returns the status of the last. */
WINNOW_EXPORT int32_t winnow_repeat(const struct winnow_call *calls, int64_t count, int32_t threads, int64_t *done);

/* The instruction set in use: "amx", "zen4", "zen5", "avx512bf16", "avx512vnni", "avx512", "avx2" or "portable". */
WINNOW_EXPORT const char *winnow_isa(void);

/* Choose an instruction set by name, for tests; WINNOW_UNKNOWN_ISA when this machine lacks it. */
WINNOW_EXPORT int32_t winnow_select_isa(const char *name);

/* Read `bytes` bytes once, vectorized, prefetched and threaded as the kernels are, and return the sum of
 * its 32-bit numbers: the speed of light against which the kernels are measured. */
WINNOW_EXPORT int64_t winnow_read_sum(const void *data, int64_t bytes, int32_t threads);

/* Multiply and add up at least so many numbers in registers, as attention without tiles does where a model of a dtype meets
 * stored numbers of `bits` bits (16: of the dtype), and return how many: what arithmetic alone takes. */
WINNOW_EXPORT int64_t winnow_multiply(int64_t products, int32_t bits, int32_t dtype, int32_t threads);

#ifdef __cplusplus
}
#endif
#endif
