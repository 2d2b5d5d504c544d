/* CRC-32, eight bytes a step ("slicing by 8", Kounavis and Berry 2005), reflected 0x04C11DB7. */
#include "hash.h"

static uint32_t tables[8][256];

void crc32_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        tables[0][byte] = crc;
    }
    for (int step = 1; step < 8; step++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = tables[step - 1][byte];
            tables[step][byte] = crc >> 8 ^ tables[0][crc & 0xFF];
        }
}

/* Little-endian, whatever the machine: the tables are made for it. */
static inline uint32_t load_le32(const uint8_t *at) {
    return (uint32_t)at[3] << 24 | (uint32_t)at[2] << 16 | (uint32_t)at[1] << 8 | at[0];
}

uint32_t crc32_of(Span span) {
    uint32_t crc = ~0u;
    Cursor cursor = cursor_of(span);
    for (const uint8_t *at; (at = read_bytes(&cursor, 8)) != NULL;) {
        uint32_t low = crc ^ load_le32(at);
        uint32_t high = load_le32(at + 4);
        crc = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^
              tables[4][low >> 24] ^ tables[3][high & 0xFF] ^ tables[2][high >> 8 & 0xFF] ^
              tables[1][high >> 16 & 0xFF] ^ tables[0][high >> 24];
    }
    for (int byte; (byte = take_byte(&cursor)) >= 0;)
        crc = crc >> 8 ^ tables[0][(crc ^ (uint32_t)byte) & 0xFF];
    return ~crc;
}

uint32_t java_hash_utf8(uint32_t hash, Span utf8) {
    Cursor cursor = cursor_of(utf8);
    for (int first; (first = take_byte(&cursor)) >= 0;) {
        /* How long a sequence is, its first byte says. */
        size_t more = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
        const uint8_t *rest = read_bytes(&cursor, more);
        if (rest == NULL)
            break;
        uint32_t point = more == 0 ? (uint32_t)first : (uint32_t)first & (0x3Fu >> more);
        for (size_t i = 0; i < more; i++)
            point = point << 6 | (rest[i] & 0x3Fu);
        /* Java hashes UTF-16 units. */
        if (point >= 0x10000) {
            hash = hash * 31 + (0xD7C0 + (point >> 10));
            point = 0xDC00 | (point & 0x3FF);
        }
        hash = hash * 31 + point;
    }
    return hash;
}
