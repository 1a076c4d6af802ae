/*
 * tests/support/cases.h - how many of its generated cases a test tries.
 *
 * The plain build tries all of them and decides whether the answers are right. A build with a
 * sanitizer needs several times as long for each case, and looks for memory errors, undefined
 * behaviour and races. It tries every seventh case: the stride is odd, so that it reaches all cases
 * of tests whose parameters alternate with a seed's lowest bits.
 */
#ifndef CAIRN_TESTS_CASES_H
#define CAIRN_TESTS_CASES_H

#if defined(__has_feature) /* clang */
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CASES_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* gcc */
#define CASES_SANITIZED
#endif

#ifdef CASES_SANITIZED
enum { CASE_STRIDE = 7 };
#else
enum { CASE_STRIDE = 1 };
#endif

/* The step between the cases of one of several tests that try the same cases in different ways.
 * Under a sanitizer they take turns: test i of n begins at case i and tries every n-th. */
#define CASE_STEP(tests) (CASE_STRIDE == 1 ? 1 : (tests))

#endif
