// Memory read bandwidth: probe THREADS [FILE]
//
// Every thread sums its own part of a private buffer in 2 MB pages and, if given, of FILE through a shared read-only
// map (small pages, page cache warm): the second is what an engine that computes from mapped weights can reach.
// Prints one JSON object; rates in GB/s, best and median of the passes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PASSES = 5, MAX_THREADS = 64, LANES = 32 };
static const size_t BUFFER = (size_t)512 << 20;

struct part {
    const uint64_t *words;
    size_t count;
    uint64_t sum;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *sum(void *argument) {
    struct part *part = argument;
    uint64_t lanes[LANES] = {0};
    const uint64_t *words = part->words;
    for (size_t i = 0; i + LANES <= part->count; i += LANES) {
        __builtin_prefetch((const char *)(words + i) + 4096);
        __builtin_prefetch((const char *)(words + i) + 4160);
        __builtin_prefetch((const char *)(words + i) + 4224);
        __builtin_prefetch((const char *)(words + i) + 4288);
        for (int j = 0; j < LANES; j++) lanes[j] += words[i + j];
    }
    for (int j = 0; j < LANES; j++) part->sum += lanes[j];
    return NULL;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static uint64_t measure(const char *name, const uint64_t *words, size_t bytes, int threads) {
    double rates[PASSES];
    uint64_t total = 0;
    for (int pass = -1; pass < PASSES; pass++) { // The first maps the pages.
        pthread_t ids[MAX_THREADS];
        struct part parts[MAX_THREADS];
        size_t each = bytes / 8 / threads;
        double start = now();
        for (int i = 0; i < threads; i++) {
            parts[i] = (struct part){words + i * each, each, 0};
            if (pthread_create(&ids[i], NULL, sum, &parts[i])) exit(1);
        }
        for (int i = 0; i < threads; i++) {
            pthread_join(ids[i], NULL);
            total += parts[i].sum;
        }
        if (pass >= 0) rates[pass] = bytes / (now() - start) / 1e9;
    }
    qsort(rates, PASSES, sizeof *rates, ascending);
    printf("\"%s\": %.2f, \"%s_median\": %.2f", name, rates[PASSES - 1], name, rates[PASSES / 2]);
    return total;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    if (argc < 2 || argc > 3 || threads < 1 || threads > MAX_THREADS) {
        fprintf(stderr, "usage: probe THREADS [FILE], 1 to %d threads\n", MAX_THREADS);
        return 2;
    }
    uint64_t *buffer = aligned_alloc((size_t)2 << 20, BUFFER);
    if (!buffer) {
        fprintf(stderr, "probe: no memory for a buffer of %zu MiB; close other programs\n", BUFFER >> 20);
        return 1;
    }
    madvise(buffer, BUFFER, MADV_HUGEPAGE);
    for (size_t i = 0; i < BUFFER / 8; i++) buffer[i] = i;
    printf("{");
    uint64_t total = measure("private", buffer, BUFFER, threads);
    if (argc == 3) {
        int file = open(argv[2], O_RDONLY);
        struct stat info;
        void *map = MAP_FAILED;
        if (file >= 0 && !fstat(file, &info)) map = mmap(NULL, info.st_size, PROT_READ, MAP_SHARED, file, 0);
        if (map == MAP_FAILED) {
            fprintf(stderr, "probe: %s cannot be mapped; give a readable file\n", argv[2]);
            return 1;
        }
        printf(", ");
        total += measure("mapped", map, info.st_size & ~(off_t)7, threads);
    }
    printf(", \"sum\": %llu}\n", (unsigned long long)total);
    return 0;
}
