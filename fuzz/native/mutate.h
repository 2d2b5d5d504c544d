/* Inputs that are made from others, and which parts of the core they reach.
 *
 * The same seed gives the same inputs in the same order.
 */
#ifndef COMETMQ_MUTATE_H
#define COMETMQ_MUTATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { INPUT_BYTES_MAX = 4096 };

typedef struct {
    uint8_t *bytes;
    size_t size;
} Input;

void seed_chance(uint64_t seed);

/* A number below `end`. */
uint32_t chance(uint32_t end);

/* Change bytes, for which there is room for INPUT_BYTES_MAX; some come from another input.  Return
 * how many they are then.
 *
 * `is_framed`: mostly make the lengths of a frame or a record right again, so that the damage is
 * deep inside. */
size_t mutate(uint8_t *bytes, size_t size, Input other, bool is_framed);

/* Whether a part of the core was reached for the first time since somebody set it to false. */
extern bool is_new;

#endif
