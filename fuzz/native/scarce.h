/* Memory that runs out when a run says so: the core is compiled with `-include scarce.h`. */
#ifndef COMETMQ_SCARCE_H
#define COMETMQ_SCARCE_H

#include <stdlib.h>

/* How many more calls succeed before one fails; negative: all do. */
extern int calls_until_scarce;

void *scarce_realloc(void *bytes, size_t size);
void *scarce_calloc(size_t count, size_t size);

#define realloc scarce_realloc
#define calloc scarce_calloc

#endif
