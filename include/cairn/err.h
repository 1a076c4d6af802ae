/*
 * cairn/err.h - the one list of errors, each named for what the caller does next.
 *
 * The file that makes a foreign call (libc, libfabric, CUDA, RocksDB) translates its error into one
 * of these, once, and logs the foreign code and text. Values keep their numbers; new ones may come.
 */
#ifndef CAIRN_ERR_H
#define CAIRN_ERR_H

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, text) */
#define CAIRN_ERR_LIST(X)                                                                          \
    X(CAIRN_OK, 0, "done")                                                                         \
    X(CAIRN_AGAIN, 1, "busy or full: try again later")                                             \
    X(CAIRN_INVAL, 2, "an argument is wrong: mend the call")                                       \
    X(CAIRN_NOMEM, 3, "out of memory: free some or ask for less")                                  \
    X(CAIRN_IO, 4, "a file or device failed: look at the disk")                                    \
    X(CAIRN_FULL, 5, "no space left: free some")                                                   \
    X(CAIRN_CORRUPT, 6, "bytes are damaged: use another copy")                                     \
    X(CAIRN_LOST, 7, "too much is lost to rebuild: use an older generation")                       \
    X(CAIRN_NOT_FOUND, 8, "there is no such thing")                                                \
    X(CAIRN_PEER, 9, "the other side is dead or cannot be reached")                                \
    X(CAIRN_TIMEOUT, 10, "the time given is over")                                                 \
    X(CAIRN_STALE, 11, "a newer epoch exists: stop, or join it")                                   \
    X(CAIRN_DENIED, 12, "not allowed: check the key, the owner or the mode")                       \
    X(CAIRN_VERSION, 13, "the other side speaks another version: upgrade one of them")             \
    X(CAIRN_DEVICE, 14, "the accelerator or its driver failed")                                    \
    X(CAIRN_CONFIG, 15, "the configuration is wrong: mend the file")                               \
    X(CAIRN_INTERNAL, 16, "a defect in Cairn: please report it")

typedef enum {
#define CAIRN_ERR_ENUM(name, value, text) name = value,
    CAIRN_ERR_LIST(CAIRN_ERR_ENUM)
#undef CAIRN_ERR_ENUM
} cairn_err;

#define CAIRN_MUST_CHECK __attribute__((warn_unused_result))

/* Returns the text of an error, one line without a full stop; never NULL, static. Thread: any. */
const char *cairn_err_text(cairn_err err);

/* Returns the symbol of an error, such as "CAIRN_AGAIN"; never NULL, static. Thread: any. */
const char *cairn_err_name(cairn_err err);

#ifdef __cplusplus
}
#endif
#endif
