/* tools/convert/maps/rule.h - parsing one rule of a map, and the words that it shares with other
 * statements; inner part of maps/parse.c. */
#ifndef CAIRN_TOOLS_CONVERT_MAPS_RULE_H
#define CAIRN_TOOLS_CONVERT_MAPS_RULE_H

#include "tools/convert/maps/language.h"
#include "tools/convert/maps/lexer.h"

/* All of these take what comes next; the lexer fails where it is wrong, and what they give is then
 * of no use. */

/* A word as a symbol, added where it is new; whole numbers are literals. */
uint32_t cairn_map_symbol_take(struct cairn_map *map, struct cairn_map_lexer *lexer);
/* The name of a side. */
uint32_t cairn_map_side_take(const struct cairn_map *map, struct cairn_map_lexer *lexer);
/* The name of a tensor. */
void cairn_map_name_take(struct cairn_map *map, struct cairn_map_lexer *lexer,
                         struct cairn_map_name *name);
/* A whole rule, to its end. *rule is the caller's to end with cairn_map_rule_fini, also where it is
 * wrong. */
void cairn_map_rule_parse(struct cairn_map *map, struct cairn_map_lexer *lexer,
                          struct cairn_map_rule *rule);
void cairn_map_rule_fini(struct cairn_map_rule *rule);

/* Checks a rule that is complete: its sides have as many parts, and in each part every axis of one
 * side is one of the other. `rule->parts` is set. CAIRN_CORRUPT, said with the rule's line. */
CAIRN_MUST_CHECK cairn_err cairn_map_rule_check(const struct cairn_map *map,
                                                struct cairn_map_rule *rule,
                                                struct cairn_complaint *complaint);

#endif
