/* The highest numbers of rows. */

#include "vectors.h"

INLINE int is_any(ivec mask) {
    union {
        ivec whole;
        int64_t parts[LANES / 2];
    } found = {mask};
    int64_t any = 0;
    for (int i = 0; i < LANES / 2; i++) any |= found.parts[i];
    return any != 0;
}

/* What is no number is higher than all that are, as it is to torch. */
INLINE int is_higher(float a, float b) { return a > b || (a != a && b == b); }

/* Put a number where it belongs among the n highest so far, behind its equals; the last one goes. */
static void insert(float value, int64_t place, float *values, int64_t *places, int64_t n) {
    int64_t i = n - 1;
    for (; i > 0 && is_higher(value, values[i - 1]); i--) values[i] = values[i - 1], places[i] = places[i - 1];
    values[i] = value, places[i] = place;
}

/* The n highest numbers of every row, highest first, and their places: n <= n_columns. Few numbers of a row are higher than the
 * n-th highest of those before them, so most are looked at by vectors only. */
void highest(const float *x, int64_t n_rows, int64_t n_columns, int64_t n, float *values, int64_t *places, int64_t n_threads) {
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
    for (int64_t row = 0; row < n_rows; row++) {
        const float *from = x + row * n_columns;
        float *best = values + row * n;
        int64_t *at = places + row * n, i = 0;
        for (; i < n; i++) insert(from[i], i, best, at, i + 1);
        for (; i + 4 * LANES <= n_columns; i += 4 * LANES) {
            const vec least = (vec){0} + best[n - 1];
            const ivec first = (load(from + i) <= least) & (load(from + i + LANES) <= least);
            const ivec second = (load(from + i + 2 * LANES) <= least) & (load(from + i + 3 * LANES) <= least);
            if (is_any(~(first & second)))
                for (int64_t j = i; j < i + 4 * LANES; j++)
                    if (is_higher(from[j], best[n - 1])) insert(from[j], j, best, at, n);
        }
        for (; i < n_columns; i++)
            if (is_higher(from[i], best[n - 1])) insert(from[i], i, best, at, n);
    }
}
