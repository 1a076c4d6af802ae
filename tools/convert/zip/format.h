/*
 * tools/convert/zip/format.h - the records of a ZIP archive: signatures, sizes, and the flags that
 * matter; for zip/read.c and zip/write.c.
 *
 * All numbers are little-endian. Offsets count from the start of the archive, which need not be
 * that of the file.
 *
 *   per entry   local header (30 bytes, name, extra), data, descriptor (16 bytes, or 24 in ZIP64)
 *   directory   per entry 46 bytes, name, extra, comment
 *   end         ZIP64 end (56 bytes), its locator (20 bytes), end (22 bytes, comment)
 *
 * A 32-bit field of all ones says that the value is in the ZIP64 extra of the directory, which has,
 * in this order and only where needed: size, stored size, offset of the local header.
 */
#ifndef CAIRN_TOOLS_CONVERT_ZIP_FORMAT_H
#define CAIRN_TOOLS_CONVERT_ZIP_FORMAT_H

#include <stdint.h>

enum {
    CAIRN_ZIP_LOCAL_BYTES = 30,
    CAIRN_ZIP_CENTRAL_BYTES = 46,
    CAIRN_ZIP_END64_BYTES = 56,
    CAIRN_ZIP_LOCATOR_BYTES = 20,
    CAIRN_ZIP_END_BYTES = 22,

    CAIRN_ZIP_LOCAL_SIGNATURE = 0x04034b50,
    CAIRN_ZIP_DESCRIPTOR_SIGNATURE = 0x08074b50,
    CAIRN_ZIP_CENTRAL_SIGNATURE = 0x02014b50,
    CAIRN_ZIP_END64_SIGNATURE = 0x06064b50,
    CAIRN_ZIP_LOCATOR_SIGNATURE = 0x07064b50,
    CAIRN_ZIP_END_SIGNATURE = 0x06054b50,

    CAIRN_ZIP_ENCRYPTED = 0x0001, /* flags */
    CAIRN_ZIP_DESCRIBED = 0x0008, /* checksum and sizes follow the data */
    CAIRN_ZIP_NAME_UTF8 = 0x0800,

    CAIRN_ZIP_EXTRA64 = 0x0001, /* extra fields */
    CAIRN_ZIP_EXTRA_PADDING = 0x4246
};

#endif
