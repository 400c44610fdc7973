/* Runs on one core with its stack 25 frames deep, each frame with 32 bytes of its own: a program for Linux' perf to sample, so that its
 * peers' importers get samples like those of cli/examples/many_stacks.rs. Each function calls one of four, most often the first. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t state = 1;
static volatile uint64_t sink;

static unsigned below(unsigned bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % bound;
}

static void call(unsigned level);

#define FUNCTION(n)                                     \
    __attribute__((noinline)) static void f##n(unsigned level) { \
        call(level + 1);                                \
        sink += n;                                      \
    }
FUNCTION(0) FUNCTION(1) FUNCTION(2) FUNCTION(3)

__attribute__((noinline)) static void leaf(void) {
    for (unsigned i = 0; i < 2000; i++) sink += i;
}

/* Two frames a level: `call` and the function that it chose. */
__attribute__((noinline)) static void call(unsigned level) {
    if (level == 10) {
        leaf();
        return;
    }
    unsigned choice = below(100);
    if (choice < 88) f0(level);
    else if (choice < 95) f1(level);
    else if (choice < 98) f2(level);
    else f3(level);
    sink += level;
}

int main(int count, char **arguments) {
    double seconds = count > 1 ? atof(arguments[1]) : 10;
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        for (int i = 0; i < 1000; i++) call(0);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - begun.tv_sec) + 1e-9 * (double)(now.tv_nsec - begun.tv_nsec) < seconds);
    return 0;
}
