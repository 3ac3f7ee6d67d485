/* Vectors of floats, as wide as the processor's registers, by the extensions that GCC and Clang share. */

#ifndef OSTINATO_VECTORS_H
#define OSTINATO_VECTORS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#else
#define LANES 8
#endif

/* Unaligned: rows of a matrix begin where its width says. */
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4)));

#define INLINE static inline __attribute__((always_inline))

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE vec load(const float *at) { return *(const vec *)at; }
INLINE void store(float *at, vec value) { *(vec *)at = value; }

/* Without it GCC may read a vector from memory again in every multiplication, which then waits for loads: with AVX2 a
 * processor does two multiplications and two loads at a time. */
#if defined(__AVX__) /* otherwise no register holds a vector */
#define KEEP_IN_REGISTER(x) __asm__("" : "+v"(x))
#else
#define KEEP_IN_REGISTER(x)
#endif

typedef float vec4 __attribute__((vector_size(16), aligned(4)));
typedef int32_t ivec4 __attribute__((vector_size(16), aligned(4)));
typedef union {
    vec whole;
    vec4 parts[LANES / 4];
    float lanes[LANES];
} Lanes;

/* Four numbers whose sum is that of all lanes. */
INLINE vec4 sum_to_four(vec value) {
    Lanes x = {.whole = value};
#if LANES == 16
    x.parts[0] += x.parts[2];
    x.parts[1] += x.parts[3];
#endif
    return x.parts[0] + x.parts[1];
}

/* Sum of all lanes, by halves. */
INLINE float sum_lanes(vec value) {
    const vec4 x = sum_to_four(value);
    return (x[0] + x[2]) + (x[1] + x[3]);
}

/* Lanes a to d of two vectors: 0 to 3 are of x, 4 to 7 of y. */
#if defined(__clang__)
#define PICK(x, y, a, b, c, d) __builtin_shufflevector(x, y, a, b, c, d)
#else
#define PICK(x, y, a, b, c, d) __builtin_shuffle(x, y, (ivec4){a, b, c, d})
#endif

#if LANES == 16
#if defined(__clang__)
#define MIX(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define MIX(x, y, ...) __builtin_shuffle(x, y, (ivec){__VA_ARGS__})
#endif

INLINE vec pair_of_halves(vec x, vec y) {
    return MIX(x, y, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           MIX(x, y, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}

/* The sums of all lanes of four vectors, each added up as `sum_lanes` does. */
INLINE vec4 four_sums(vec a, vec b, vec c, vec d) {
    const vec ab = pair_of_halves(a, b), cd = pair_of_halves(c, d);
    const vec all = MIX(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                    MIX(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    const vec two = all + MIX(all, all, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    const vec one = two + MIX(two, two, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    const Lanes sums = {.whole = MIX(one, one, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12)};
    return sums.parts[0];
}
#else
INLINE vec4 four_sums(vec a, vec b, vec c, vec d) {
    const vec4 x = sum_to_four(a), y = sum_to_four(b), z = sum_to_four(c), w = sum_to_four(d);
    const vec4 xy = PICK(x, y, 0, 4, 1, 5) + PICK(x, y, 2, 6, 3, 7), zw = PICK(z, w, 0, 4, 1, 5) + PICK(z, w, 2, 6, 3, 7);
    return PICK(xy, zw, 0, 1, 4, 5) + PICK(xy, zw, 2, 3, 6, 7);
}
#endif

INLINE float dot(const float *a, const float *b, int n) {
    vec sums = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES) sums += load(a + i) * load(b + i);
    float sum = sum_lanes(sums);
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* Products of a with four rows of n numbers that follow each other, each added up as `dot` does. */
INLINE vec4 four_dots(const float *a, const float *b, int64_t n) {
    vec sums[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vec value = load(a + i);
#pragma GCC unroll 4
        for (int row = 0; row < 4; row++) sums[row] += value * load(b + row * n + i);
    }
    vec4 found = four_sums(sums[0], sums[1], sums[2], sums[3]);
    for (; i < n; i++)
        for (int row = 0; row < 4; row++) found[row] += a[i] * b[row * n + i];
    return found;
}

/* y += factor x */
INLINE void add_row(float factor, const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += factor * x[i];
}

INLINE vec pick(ivec where, vec a, vec b) { return (vec)(((ivec)a & where) | ((ivec)b & ~where)); }

INLINE vec higher(vec a, vec b) { return pick(a > b, a, b); }

/* The highest of n numbers; NaN is skipped. */
INLINE float top_of(const float *x, int64_t n) {
    vec tops = (vec){0} - INFINITY;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) tops = higher(load(x + i), tops);
    const Lanes all = {.whole = tops};
    float top = -INFINITY;
    for (int lane = 0; lane < LANES; lane++) top = all.lanes[lane] > top ? all.lanes[lane] : top;
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

/* e^x of x <= 0, to about 1e-7 of it: 2^n e^r, |r| <= ln(2) / 2, e^r by its series; 0 below the least normal number. */
INLINE vec exp_below_zero(vec x) {
    const ivec is_tiny = x < -87.0f;
    x = pick(is_tiny, (vec){0} - 87.0f, x);
    const ivec n = __builtin_convertvector(x * 1.44269504f - 0.5f, ivec); /* towards zero: the nearest of x <= 0 */
    const vec whole = __builtin_convertvector(n, vec);
    const vec r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    vec y = r * (1.0f / 5040) + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    y *= (vec)((n + 127) << 23);
    return (vec)((ivec)y & ~is_tiny);
}

/* x / (1 + e^-y) */
INLINE vec times_sigmoid(vec x, vec y) {
    const ivec is_above = y > 0;
    const vec e = exp_below_zero(pick(is_above, -y, y));
    return x * (pick(is_above, (vec){0} + 1.0f, e) / (1.0f + e));
}

/* x Phi(x), Phi(x) = 1 - tail(x), Phi(-x) = tail(x), tail(x) = e^{-z^2} g(z) / 2 of x >= 0, z = x / sqrt(2). Of g, the scaled
 * complementary error function, (z + 3) g(z) is a polynomial of (z - 3) / (z + 3): fitted up to z = 10, to 2e-9 of it. */
INLINE vec gelu(vec x) {
    const ivec is_above = x > 0;
    const vec away = pick(is_above, x, -x) * 0.70710678f;
    const vec z = pick(away > 10.0f, (vec){0} + 10.0f, away), part = 1.0f / (z + 3.0f), q = (z - 3.0f) * part;
    vec y = q * -3.28343647e-4f - 4.88011367e-4f;
    y = y * q + 3.08054792e-3f;
    y = y * q - 1.22348313e-3f;
    y = y * q - 2.68394310e-2f;
    y = y * q + 1.19528462e-1f;
    y = y * q - 3.10466075e-1f;
    y = y * q + 5.90228341e-1f;
    y = y * q - 8.83394485e-1f;
    y = y * q + 1.07400691f;
    const vec tail = 0.5f * exp_below_zero(-z * z) * (y * part);
    return x * pick(is_above, 1.0f - tail, tail);
}

#endif
