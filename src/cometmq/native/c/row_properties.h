/* The property strings of many rows, most of which have the names of the row before. */
#ifndef COMETMQ_ROW_PROPERTIES_H
#define COMETMQ_ROW_PROPERTIES_H

#include "bytes.h"

enum { ROW_PROPERTIES_MAX = 64 };

/* The names of a row. */
typedef struct {
    Span names[ROW_PROPERTIES_MAX];
    size_t count;
    /* Which of them these are; -1: none. */
    int tags, keys, uniq_key;
} Shape;

/* Read the values of a property string of `shape`, or of another shape, which `shape` then is and
 * `has_changed` says.
 *
 * False stops: a name or a value is empty, a separator is at a wrong position, a name is repeated,
 * or there are more than ROW_PROPERTIES_MAX properties.  The last property may lack its 0x02.
 * The bits of all values and of names that the row before does not have add to `bits`, so that the
 * caller can check text that is not ASCII. */
bool read_row_properties(Span text, Shape *shape, Span *values, bool *has_changed, uint64_t *bits);

#endif
