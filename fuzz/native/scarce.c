#include "scarce.h"

#undef realloc
#undef calloc

int calls_until_scarce = -1;

static int is_scarce(void) {
    return calls_until_scarce >= 0 && calls_until_scarce-- == 0;
}

void *scarce_realloc(void *bytes, size_t size) {
    return is_scarce() ? NULL : realloc(bytes, size);
}

void *scarce_calloc(size_t count, size_t size) {
    return is_scarce() ? NULL : calloc(count, size);
}
