/* A stencil on a ring, step after step, as simulations do: each step is a parallel loop, at whose
 * end the threads wait for each other. The argument is the number of steps. Prints a checksum. */
#include <stdio.h>
#include <stdlib.h>

enum { CELLS = 200000 };

static double first[CELLS], second[CELLS];

int main(int argc, char **argv)
{
    long steps = argc > 1 ? atol(argv[1]) : 1000;
    double *from = first, *to = second;

    for (long at = 0; at < CELLS; at++)
        from[at] = at % 17;
    for (long step = 0; step < steps; step++) {
#pragma omp parallel for
        for (long at = 0; at < CELLS; at++) {
            double left = from[at ? at - 1 : CELLS - 1], right = from[at + 1 < CELLS ? at + 1 : 0];
            double value = from[at];
            for (int turn = 0; turn < 8; turn++)
                value = 0.5 * value + 0.25 * (left + right) / (1.0 + 1e-6 * value * value);
            to[at] = value;
        }
        double *swap = from;
        from = to;
        to = swap;
    }
    double sum = 0;
    for (long at = 0; at < CELLS; at++)
        sum += from[at];
    printf("%.6f\n", sum);
    return 0;
}
