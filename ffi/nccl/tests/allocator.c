/*
 * A library that stands in for the C library's malloc, which it passes everything to.
 */
#include <stddef.h>

void *__libc_malloc(size_t bytes);
void *malloc(size_t bytes);

__attribute__((visibility("default"))) void *malloc(size_t bytes) { return __libc_malloc(bytes); }
