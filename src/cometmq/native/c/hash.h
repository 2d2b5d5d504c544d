/* CRC-32 of bodies, and Java's String.hashCode of text. */
#ifndef COMETMQ_HASH_H
#define COMETMQ_HASH_H

#include "bytes.h"

/* Build the tables; called once, when the module is loaded. */
void crc32_prepare(void);

/* The CRC-32 of zlib and of java.util.zip.CRC32. */
uint32_t crc32_of(Span span);

/* Java's hashCode of text in which each byte is one character, continued from `hash`. */
static inline uint32_t java_hash(uint32_t hash, Span ascii) {
    Cursor cursor = cursor_of(ascii);
    for (int byte; (byte = take_byte(&cursor)) >= 0;)
        hash = hash * 31 + (uint32_t)byte;
    return hash;
}

/* Java's hashCode of UTF-8, continued from `hash`.  Where a sequence breaks off, the text ends. */
uint32_t java_hash_utf8(uint32_t hash, Span utf8);

/* The hash of an index entry: Math.abs; the least int has no absolute value and becomes 0. */
static inline uint32_t index_hash(uint32_t hash) {
    return hash <= 0x7FFFFFFF ? hash : hash == 0x80000000u ? 0 : 0u - hash;
}

#endif
