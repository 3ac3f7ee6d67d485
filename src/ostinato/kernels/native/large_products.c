/* c (+)= a b + bias of many rows: a [N, D], b [D, F], c [N, F], as they lie or transposed.
 *
 * b is copied, some rows at a time, into panels as wide as a tile, one behind the other, which threads share: what a tile
 * reads of it lies together. Every thread takes blocks of rows of a; where a is transposed it copies those, too. (Blocks
 * for each cache: Goto and van de Geijn 2008.) A number is one sum over D in parts of DEPTH, in one order, whatever the
 * number of threads. */

#include <stdlib.h>
#include <string.h>

#include "tiles.h"

#define PANEL (TILE_VECS * LANES) /* columns */
#define DEPTH 256                 /* rows of b at a time: a panel has 48 KiB with AVX-512, the L1 cache of Zen 5 */
#define MOST_PANELS 64            /* at a time: some megabytes */
#define BLOCK_ROWS (8 * TILE_ROWS)
#define BLOCK_PANELS 4

typedef struct {
    const float *a, *b, *bias; /* [F], or NULL */
    float *c;
    int64_t n_rows, n_columns, n; /* N, F, D */
    int64_t a_row, a_column, b_row, b_column, c_row; /* steps, in numbers; of a and b one is 1 */
    int32_t adds;
} LargeProduct;

static __attribute__((noinline)) void any_tile(int vecs, int rows, int64_t columns, int64_t n, const float *a, int64_t a_row,
                                               int64_t a_column, const float *b, float *c, int64_t c_row, int mode,
                                               const float *bias) {
    /* Steps that are known to the compiler, and whole tiles apart from edges. */
#define TILE(v, r, f, row, column) tile(v, r, f, n, a, row, column, b, PANEL, c, c_row, mode, bias)
    const int is_whole = rows == TILE_ROWS && columns == vecs * LANES;
    if (vecs == 3 && is_whole && a_column == 1) TILE(3, TILE_ROWS, PANEL, a_row, 1);
    else if (vecs == 3 && is_whole) TILE(3, TILE_ROWS, PANEL, 1, TILE_ROWS);
    else if (vecs == 3 && a_column == 1) TILE(3, rows, columns, a_row, 1);
    else if (vecs == 3) TILE(3, rows, columns, 1, TILE_ROWS);
    else if (vecs == 2 && a_column == 1) TILE(2, rows, columns, a_row, 1);
    else if (vecs == 2) TILE(2, rows, columns, 1, TILE_ROWS);
    else if (a_column == 1) TILE(1, rows, columns, a_row, 1);
    else TILE(1, rows, columns, 1, TILE_ROWS);
}

/* Copy columns of b [n, columns] into a panel, zeros behind them. */
static void copy_panel(const float *b, int64_t row, int64_t column, int64_t n, int64_t columns, float *y) {
    if (columns < PANEL) memset(y, 0, n * PANEL * sizeof(float));
    if (column != 1)
        transpose(b, column, columns, n, y, PANEL);
    else
        for (int64_t s = 0; s < n; s++)
            for (int64_t i = 0; i < columns; i++) y[s * PANEL + i] = b[s * row + i];
}

/* Copy rows of a transposed a, for every tile [n, TILE_ROWS]. Of a whole tile the inner bound is known to the compiler. */
static void copy_rows_of_tiles(const float *a, int64_t column, int64_t n, int64_t rows, float *y) {
    for (int64_t first = 0; first < rows; first += TILE_ROWS) {
        const float *x = a + first;
        if (first + TILE_ROWS <= rows)
            for (int64_t s = 0; s < n; s++)
                for (int i = 0; i < TILE_ROWS; i++) y[first * DEPTH + s * TILE_ROWS + i] = x[s * column + i];
        else
            for (int64_t s = 0; s < n; s++)
                for (int64_t i = 0; i < rows - first; i++) y[first * DEPTH + s * TILE_ROWS + i] = x[s * column + i];
    }
}

/* Some panels of b, beginning with column `column`, and rows `first` to before first + n of b. */
typedef struct {
    const float *panels;
    int64_t column, columns, first, n;
} Part;

static void block(const LargeProduct *p, const Part *part, int64_t row, int64_t first_panel, float *copied) {
    const int64_t rows = least(p->n_rows - row, BLOCK_ROWS);
    const float *a = p->a + row * p->a_row + part->first * p->a_column;
    const int is_copied = p->a_column != 1, mode = part->first || p->adds ? ADD : REPLACE;
    if (is_copied) copy_rows_of_tiles(a, p->a_column, part->n, rows, copied);
    const int64_t end = least((first_panel + BLOCK_PANELS) * PANEL, part->columns);
    for (int64_t column = first_panel * PANEL; column < end; column += PANEL) {
        const int64_t width = least(part->columns - column, PANEL), in_c = part->column + column;
        const float *bias = p->bias && !part->first ? p->bias + in_c : NULL;
        for (int64_t i = 0; i < rows; i += TILE_ROWS) {
            const float *left = is_copied ? copied + i * DEPTH : a + i * p->a_row;
            any_tile((int)(whole(width, LANES) / LANES), (int)least(rows - i, TILE_ROWS), width, part->n, left,
                     is_copied ? 1 : p->a_row, is_copied ? TILE_ROWS : 1, part->panels + column * DEPTH,
                     p->c + (row + i) * p->c_row + in_c, p->c_row, mode, bias);
        }
    }
}

/* Not 0: there is no memory for it. */
int64_t large_product(const LargeProduct *p, int64_t n_threads) {
    const int64_t most = least(whole(p->n_columns, PANEL), MOST_PANELS * PANEL);
    float *panels = aligned_alloc(64, most * DEPTH * sizeof(float));
    if (!panels) return 1;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        float copied[BLOCK_ROWS * DEPTH] __attribute__((aligned(64)));
        for (int64_t column = 0; column < p->n_columns; column += most)
            for (int64_t first = 0; first < p->n; first += DEPTH) {
                const Part part = {panels, column, least(p->n_columns - column, most), first, least(p->n - first, DEPTH)};
                const float *b = p->b + first * p->b_row + column * p->b_column;
                const int64_t n_panels = whole(part.columns, PANEL) / PANEL;
                const int64_t n_across = whole(n_panels, BLOCK_PANELS) / BLOCK_PANELS;
#pragma omp for
                for (int64_t i = 0; i < n_panels; i++)
                    copy_panel(b + i * PANEL * p->b_column, p->b_row, p->b_column, part.n,
                               least(part.columns - i * PANEL, PANEL), panels + i * PANEL * DEPTH);
#pragma omp for
                for (int64_t unit = 0; unit < whole(p->n_rows, BLOCK_ROWS) / BLOCK_ROWS * n_across; unit++)
                    block(p, &part, unit / n_across * BLOCK_ROWS, unit % n_across * BLOCK_PANELS, copied);
            }
    }
    free(panels);
    return 0;
}
