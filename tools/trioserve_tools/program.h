/* What every program here needs: to say what is wrong and end, to know the time, to have memory. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *room_for(size_t count, size_t nbytes) {
    void *memory = calloc(count ? count : 1, nbytes ? nbytes : 1);
    if (!memory) fail("out of memory");
    return memory;
}
