/*
 * tools/convert/torch/file.h - a file that torch.save wrote: its tensors, where their bytes lie,
 * and the rest of the object as an inert tree.
 *
 * Both forms are read: the ZIP archive of PyTorch since 1.6, and the one before it, which is five
 * pickles (magic number, version, byte order, object, storage keys) and then each storage behind
 * its count of elements. Nothing of the data is read, and in both the tree names storages as the
 * newer form does. The tar form of 2016 and TorchScript archives are recognized and refused, as is
 * what was written on a big-endian machine.
 *
 * Names of tensors are the paths to them: keys, attributes and indexes, joined by dots. Arguments
 * of a call that is not a tensor's are "()" and their number. A key that is not a string stands as
 * Python would print it where it is a number, None, a boolean, a dtype or a tuple of such, else as
 * "?" and its index. A tensor that is held twice has two names. Names need not differ: keys may
 * have dots themselves.
 */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_FILE_H
#define CAIRN_TOOLS_CONVERT_TORCH_FILE_H

#include "tools/convert/torch/tree.h"
#include "tools/convert/zip/read.h"

enum {
    CAIRN_TORCH_NAME_BYTES_MAX = 4096,
    CAIRN_TORCH_TENSORS_MAX = 1 << 24,
    CAIRN_TORCH_ALIGN_BYTES = 64 /* of storages in the archive */
};

struct cairn_torch_stored {
    char key[CAIRN_TORCH_KEY_BYTES_MAX];
    const struct cairn_torch_dtype *dtype; /* of its class; NULL: untyped */
    uint64_t at;                           /* of its first byte in the file */
    uint64_t bytes;
    uint32_t crc32; /* 0: none was taken */
    bool viewed;    /* a tensor of the list lies in it */
};

struct cairn_torch_tensor {
    const char *name;
    const struct cairn_pickle_node *node;
    struct cairn_torch_view view;
    uint32_t storage; /* which of the file's */
    uint64_t at;      /* of its first element in the file */
    uint64_t bytes;   /* of all elements, each counted once per place in the tensor */
    bool contiguous;  /* row-major without gaps: [at, at + bytes) is the tensor */
};

struct cairn_torch_file {
    struct cairn_pickle tree; /* all nodes; ended by cairn_torch_close */
    struct cairn_pickle_node *root;
    struct cairn_torch_stored *storages; /* in the order in which the object first names them */
    uint32_t storage_count;
    struct cairn_torch_tensor *tensors; /* in the order of the tree */
    uint32_t tensor_count;
    bool legacy; /* the form before 1.6 */

    uint8_t *pickle_bytes;     /* what the tree borrows its strings from */
    struct cairn_pickle names; /* what the tensors' names are kept in */
    uint32_t *storage_slots;   /* by hash of key: index + 1 */
    uint32_t slot_count;
};

enum cairn_torch_form {
    CAIRN_TORCH_NOT = 0,
    CAIRN_TORCH_ZIP,
    CAIRN_TORCH_LEGACY,
    CAIRN_TORCH_TAR /* recognized, and refused by cairn_torch_open */
};
enum { CAIRN_TORCH_PROBE_BYTES = 512 };

/* What the first CAIRN_TORCH_PROBE_BYTES of a file (or all, if there are fewer) may be. */
enum cairn_torch_form cairn_torch_probe(const void *bytes, size_t bytes_len);

/* Reads the metadata of [begin, begin + bytes) of an open file: all of it, or a part that
 * torch.save wrote into a larger one. `where` names it in complaints. The pickle, the tree, the
 * tensors and their names take at most memory_bytes each. The caller ends *file with
 * cairn_torch_close, and `fd`. CAIRN_CORRUPT, CAIRN_IO, CAIRN_NOMEM; then *file is zeroes. */
CAIRN_MUST_CHECK cairn_err cairn_torch_open(int fd, const char *where, uint64_t begin,
                                            uint64_t bytes, uint64_t memory_bytes,
                                            struct cairn_torch_file *file,
                                            struct cairn_complaint *complaint);
/* Frees; allowed twice and on zeroes. */
void cairn_torch_close(struct cairn_torch_file *file);

/* The storage of a key; NULL where there is none. */
struct cairn_torch_stored *cairn_torch_find_storage(const struct cairn_torch_file *file,
                                                    const char *key);

#endif
