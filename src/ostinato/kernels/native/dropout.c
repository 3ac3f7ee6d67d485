/* Dropout in one pass over what is dropped: kept is 1 for a kept number and 0 for a dropped one, n numbers of each. */

#include <string.h>

#include "vectors.h"

#define OVER(i, n, n_threads) _Pragma("omp parallel for num_threads(n_threads) if (n_threads > 1)") for (int64_t i = 0; i < n; i++)

/* y = scale kept x */
void drop(const float *x, const uint8_t *kept, float scale, float *y, int64_t n, int64_t n_threads) {
    OVER(i, n, n_threads) y[i] = scale * kept[i] * x[i];
}

/* y = r + scale kept x */
void add_dropped(const float *r, const float *x, const uint8_t *kept, float scale, float *y, int64_t n, int64_t n_threads) {
    OVER(i, n, n_threads) y[i] = r[i] + scale * kept[i] * x[i];
}

/* x = scale kept max(0, x), in place; NaN stays NaN. */
void drop_relu(float *x, const uint8_t *kept, float scale, int64_t n, int64_t n_threads) {
    OVER(i, n, n_threads) x[i] = scale * kept[i] * (x[i] < 0 ? 0 : x[i]);
}

/* y = scale g where the result r of `drop_relu` is not 0, else 0, by a mask of bits. With a condition GCC does not vectorise
 * the loop: a product may raise a floating-point exception, so it stands behind a branch, which is mispredicted half the time. */
void drop_relu_gradient(const float *g, const float *r, float scale, float *y, int64_t n, int64_t n_threads) {
    OVER(i, n, n_threads) {
        union {
            float number;
            int32_t bits;
        } scaled = {scale * g[i]};
        scaled.bits &= r[i] <= 0 ? 0 : -1;
        y[i] = scaled.number;
    }
}

/* The state of torch's generator of a CPU, as `torch.get_rng_state` gives it: the Mersenne twister MT19937 (Matsumoto and
 * Nishimura 1998). `left` - 1 of its words, from `next` on, have not been used. */
#define N_WORDS 624
#define MIDDLE 397

typedef struct {
    uint64_t seed;
    int32_t left, is_seeded;
    uint64_t next, words[N_WORDS];
} Generator;

INLINE uint32_t twisted(uint32_t a, uint32_t b) {
    return (((a & 0x80000000u) | (b & 0x7fffffffu)) >> 1) ^ (b & 1 ? 0x9908b0dfu : 0);
}

static void renew(uint32_t *words) {
    for (int i = 0; i < N_WORDS - MIDDLE; i++) words[i] = words[i + MIDDLE] ^ twisted(words[i], words[i + 1]);
    for (int i = N_WORDS - MIDDLE; i < N_WORDS - 1; i++)
        words[i] = words[i - (N_WORDS - MIDDLE)] ^ twisted(words[i], words[i + 1]);
    words[N_WORDS - 1] = words[MIDDLE - 1] ^ twisted(words[N_WORDS - 1], words[0]);
}

INLINE uint32_t tempered(uint32_t y) {
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

#define PAIRS 64

/* kept[j] = 1 where byte j of the next words of 64 bits is at least `level`, else 0; the state goes on. Words are drawn as
 * torch draws them, the upper half first, which here lies behind the lower one. */
void draw_kept(Generator *state, int64_t level, uint8_t *kept, int64_t n) {
    uint32_t words[N_WORDS];
    for (int i = 0; i < N_WORDS; i++) words[i] = (uint32_t)state->words[i];
    int64_t next = state->next, unused = state->left - 1;
    for (int64_t first = 0; first < n; first += 8 * PAIRS) {
        const int64_t rest = n - first < 8 * PAIRS ? n - first : 8 * PAIRS, wanted = 2 * ((rest + 7) / 8);
        uint32_t drawn[2 * PAIRS] = {0}, ordered[2 * PAIRS];
        uint8_t bytes[8 * PAIRS];
        for (int64_t i = 0; i < wanted;) {
            if (!unused) renew(words), next = 0, unused = N_WORDS;
            const int64_t now = wanted - i < unused ? wanted - i : unused;
            for (int64_t j = 0; j < now; j++) drawn[i + j] = tempered(words[next + j]);
            i += now, next += now, unused -= now;
        }
        for (int64_t i = 0; i < PAIRS; i++) ordered[2 * i] = drawn[2 * i + 1], ordered[2 * i + 1] = drawn[2 * i];
        memcpy(bytes, ordered, sizeof(bytes));
        for (int64_t j = 0; j < 8 * PAIRS; j++) bytes[j] = bytes[j] >= (uint8_t)level;
        memcpy(kept + first, bytes, rest);
    }
    for (int i = 0; i < N_WORDS; i++) state->words[i] = words[i];
    state->next = next, state->left = (int32_t)unused + 1;
}
