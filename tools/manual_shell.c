/*
 * tools/manual_shell.c - completions for bash, zsh and fish.
 *
 * Every shell completes verbs, options and values. The table's name of a value gives its type:
 * "table|json" is a choice, FILE and DIR are paths; for values that depend on the machine (FORMAT,
 * JOB, E:S) the shell asks `cairn manual words`.
 */
#include "tools/manual.h"

#include <string.h>

/* ---- what a value can be ---- */

enum offer { OFFER_NOTHING, OFFER_CHOICE, OFFER_FILES, OFFER_FOLDERS, OFFER_COMMAND, OFFER_WORDS };

static enum offer
offer_of(const char *value)
{
    static const struct {
        const char *value;
        enum offer offer;
    } known[] = {{"FILE", OFFER_FILES},   {"DIR", OFFER_FOLDERS}, {"CMD", OFFER_COMMAND},
                 {"SOCKET", OFFER_WORDS}, {"JOB", OFFER_WORDS},   {"E:S", OFFER_WORDS},
                 {"FORMAT", OFFER_WORDS}, {"MAP", OFFER_WORDS}};

    if (value && strchr(value, '|'))
        return OFFER_CHOICE;
    for (size_t i = 0; value && i < sizeof known / sizeof *known; i++)
        if (strcmp(value, known[i].value) == 0)
            return known[i].offer;
    return OFFER_NOTHING;
}

/* "table|json" with a space for each bar. */
static void
put_choice(FILE *out, const char *value)
{
    for (; *value; value++)
        fputc(*value == '|' ? ' ' : *value, out);
}

/* Text within single quotes; characters of `escaped` get a backslash. */
static void
put_quoted(FILE *out, const char *text, const char *escaped)
{
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", out);
        else
            fprintf(out, "%s%c", strchr(escaped, *text) ? "\\" : "", *text);
}

static const struct cairn_flag help_flag = {"help", 'h', NULL, "print the help", NULL, NULL};

/* The options of a verb, then --help, then NULL. */
static const struct cairn_flag *
flag_at(const struct cairn_usage *usage, size_t i)
{
    return i < usage->flag_count ? &usage->flags[i] : i == usage->flag_count ? &help_flag : NULL;
}

static void
put_verbs(FILE *out, const struct cairn_verbs *verbs, const char *before, const char *between,
          const char *after)
{
    for (size_t i = 0; i < verbs->count; i++)
        if (verbs->rows[i].help) {
            fprintf(out, "%s%s", before, verbs->rows[i].name);
            if (between) {
                fputs(between, out);
                put_quoted(out, verbs->rows[i].help, "");
            }
            fputs(after, out);
        }
}

/* ---- bash ---- */

static const char bash_begin[] =
    "# bash completion of cairn, written by `cairn manual bash`\n"
    "# The word is everything behind the last space: bash splits words at : and = too.\n"
    "_cairn() {\n"
    "    local line=${COMP_LINE:0:COMP_POINT} how=nothing what= more= options= IFS=$' \\n'\n"
    "    local word=${line##*[[:space:]]} before words\n"
    "    read -ra words <<<\"${line%\"$word\"}\"\n"
    "    before=${words[-1]}\n"
    "    [[ $word == --*=* ]] && before=${word%%=*} word=${word#*=}\n"
    "    case ${#words[@]}:${words[1]} in\n"
    "    1:*) how=choice what='";
static const char bash_middle[] = "help version' options='--help --version' ;;\n"
                                  "    2:help) how=choice what='";
/* A verb's part leaves `options` empty if the word before it wants a value. Paths and commands are
 * compared with the word as the shell has it, all else with the whole word. */
static const char bash_end[] =
    "    esac\n"
    "    [[ \" ${words[*]} \" == *' -- '* ]] && options=\n"
    "    [[ $word == -* && $options ]] && how=choice what=$options\n"
    "    [[ $what == SOCKET || $what == MAP ]] && more='-A file'\n"
    "    [[ $how == words ]] && what=$(\"${words[0]}\" manual words \"$what\" 2>/dev/null)\n"
    "    case $how in\n"
    "    file | directory | command)\n"
    "        word=${COMP_WORDS[COMP_CWORD]#=}\n"
    "        mapfile -t COMPREPLY < <(compgen -A $how -- \"$word\")\n"
    "        compopt -o filenames 2>/dev/null\n"
    "        ;;\n"
    "    *)\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$what\" $more -- \"$word\")\n"
    "        [[ $word == *:* ]] && COMPREPLY=(\"${COMPREPLY[@]#\"${word%:*}:\"}\")\n"
    "        ;;\n"
    "    esac\n"
    "}\n"
    "complete -F _cairn cairn\n";

/* The assignments for a value. */
static void
put_bash_value(FILE *out, const char *value)
{
    static const char *const names[] = {"nothing",   "choice",  "file",
                                        "directory", "command", "words"};
    enum offer offer = offer_of(value);

    fprintf(out, "how=%s", names[offer]);
    if (offer == OFFER_CHOICE || offer == OFFER_WORDS) {
        fputs(" what='", out);
        put_choice(out, value);
        fputc('\'', out);
    }
}

static void
put_bash(FILE *out, const struct cairn_usage *usage)
{
    const struct cairn_flag *flag;

    fprintf(out, "    *:%s)\n        options='", usage->verb);
    for (size_t i = 0; (flag = flag_at(usage, i)); i++) {
        fprintf(out, "%s--%s", i ? " " : "", flag->name);
        if (flag->letter)
            fprintf(out, " -%c", flag->letter);
    }
    fputs("'\n        case $before in\n", out);
    for (size_t i = 0; i < usage->flag_count; i++) {
        flag = &usage->flags[i];
        if (!flag->value)
            continue;
        fprintf(out, "        --%s", flag->name);
        if (flag->letter)
            fprintf(out, " | -%c", flag->letter);
        fputs(") options= ", out);
        put_bash_value(out, flag->value);
        fputs(" ;;\n", out);
    }
    fputs("        *) ", out);
    put_bash_value(out, usage->operand);
    fputs(" ;;\n        esac\n        ;;\n", out);
}

/* ---- zsh ---- */

static const char zsh_begin[] =
    "#compdef cairn\n"
    "# zsh completion of cairn, written by `cairn manual zsh`\n"
    "_cairn_words() { # the last argument names the value, the others are compadd's\n"
    "    local -a found\n"
    "    found=(${(f)\"$(_call_program words cairn manual words ${argv[-1]} 2>/dev/null)\"})\n"
    "    compadd \"${@[1,-2]}\" -a found\n"
    "    [[ $argv[-1] != (SOCKET|MAP) ]] || _files\n"
    "}\n"
    "_cairn() {\n"
    "    local -a verbs\n"
    "    verbs=(\n";
static const char zsh_middle[] = "        'help:show the help of a verb'\n"
                                 "        'version:print the version'\n"
                                 "    )\n"
                                 "    if ((CURRENT == 2)); then\n"
                                 "        _describe verb verbs\n"
                                 "        return\n"
                                 "    fi\n"
                                 "    shift words\n"
                                 "    ((CURRENT--))\n"
                                 "    case $words[1] in\n"
                                 "    help) _describe verb verbs ;;\n";
static const char zsh_end[] = "    esac\n}\n_cairn \"$@\"\n";

/* ":message:action" of a value. */
static void
put_zsh_value(FILE *out, const char *value)
{
    fputc(':', out);
    put_quoted(out, value, ":");
    switch (offer_of(value)) {
    case OFFER_NOTHING:
        fputs(": ", out);
        break;
    case OFFER_CHOICE:
        fputs(":(", out);
        put_choice(out, value);
        fputc(')', out);
        break;
    case OFFER_FILES:
        fputs(":_files", out);
        break;
    case OFFER_FOLDERS:
        fputs(":_files -/", out);
        break;
    case OFFER_COMMAND:
        fputs(":_normal", out);
        break;
    case OFFER_WORDS:
        fputs(":_cairn_words ", out);
        put_quoted(out, value, ":");
        break;
    }
}

static void
put_zsh(FILE *out, const struct cairn_usage *usage)
{
    const struct cairn_flag *flag;

    fprintf(out, "    %s)\n        _arguments -s", usage->verb);
    for (size_t i = 0; (flag = flag_at(usage, i)); i++) {
        const char *equals = flag->value ? "=" : "";

        if (flag->letter)
            fprintf(out, " \\\n            '(-%c --%s)'{-%c%s,--%s%s}'[", flag->letter, flag->name,
                    flag->letter, flag->value ? "+" : "", flag->name, equals);
        else
            fprintf(out, " \\\n            '--%s%s[", flag->name, equals);
        put_quoted(out, flag->help, "[]");
        fputc(']', out);
        if (flag->value)
            put_zsh_value(out, flag->value);
        fputc('\'', out);
    }
    if (usage->operand) {
        fprintf(out, " \\\n            '*%s",
                offer_of(usage->operand) == OFFER_COMMAND ? "::" : ":");
        put_zsh_value(out, usage->operand);
        fputc('\'', out);
    }
    fputs("\n        ;;\n", out);
}

/* ---- fish ---- */

static const char fish_begin[] = "# fish completion of cairn, written by `cairn manual fish`\n"
                                 "function __cairn_verb\n"
                                 "    set -l words (commandline -opc)\n"
                                 "    test (count $words) -ge 2; and test $words[2] = $argv[1]\n"
                                 "end\n"
                                 "complete -c cairn -f\n";

static void
put_fish_value(FILE *out, const char *value)
{
    switch (offer_of(value)) {
    case OFFER_NOTHING:
        fputs(" -x", out);
        break;
    case OFFER_CHOICE:
        fputs(" -x -a '", out);
        put_choice(out, value);
        fputc('\'', out);
        break;
    case OFFER_FILES:
        fputs(" -r -F", out);
        break;
    case OFFER_FOLDERS:
        fputs(" -x -a '(__fish_complete_directories)'", out);
        break;
    case OFFER_COMMAND:
        fputs(" -x -a '(__fish_complete_subcommand)'", out);
        break;
    case OFFER_WORDS:
        fprintf(out, " -r%s -a '(cairn manual words %s)'",
                strcmp(value, "SOCKET") == 0 || strcmp(value, "MAP") == 0 ? " -F" : " -f", value);
        break;
    }
}

static void
put_fish(FILE *out, const struct cairn_usage *usage)
{
    const struct cairn_flag *flag;

    for (size_t i = 0; (flag = flag_at(usage, i)); i++) {
        fprintf(out, "complete -c cairn -n '__cairn_verb %s' -l %s", usage->verb, flag->name);
        if (flag->letter)
            fprintf(out, " -s %c", flag->letter);
        if (flag->value)
            put_fish_value(out, flag->value);
        fputs(" -d '", out);
        put_quoted(out, flag->help, "\\");
        fputs("'\n", out);
    }
    if (usage->operand && offer_of(usage->operand) != OFFER_NOTHING) {
        fprintf(out, "complete -c cairn -n '__cairn_verb %s'", usage->verb);
        put_fish_value(out, usage->operand);
        fputc('\n', out);
    }
}

/* ---- all of them ---- */

void
cairn_shell_begin(enum cairn_manual_form form, const struct cairn_verbs *verbs, FILE *out)
{
    switch (form) {
    case CAIRN_MANUAL_BASH:
        fputs(bash_begin, out);
        put_verbs(out, verbs, "", NULL, " ");
        fputs(bash_middle, out);
        put_verbs(out, verbs, "", NULL, " ");
        fputs("' ;;\n", out);
        break;
    case CAIRN_MANUAL_ZSH:
        fputs(zsh_begin, out);
        put_verbs(out, verbs, "        '", ":", "'\n");
        fputs(zsh_middle, out);
        break;
    case CAIRN_MANUAL_FISH:
        fputs(fish_begin, out);
        put_verbs(out, verbs, "complete -c cairn -n 'test (count (commandline -opc)) -eq 1' -a ",
                  " -d '", "'\n");
        put_verbs(out, verbs, "complete -c cairn -n '__cairn_verb help' -a ", " -d '", "'\n");
        break;
    case CAIRN_MANUAL_NONE:
    case CAIRN_MANUAL_MAN:
        break;
    }
}

void
cairn_shell_print(enum cairn_manual_form form, const struct cairn_usage *usage, FILE *out)
{
    if (form == CAIRN_MANUAL_BASH)
        put_bash(out, usage);
    else if (form == CAIRN_MANUAL_ZSH)
        put_zsh(out, usage);
    else if (form == CAIRN_MANUAL_FISH)
        put_fish(out, usage);
}

void
cairn_shell_end(enum cairn_manual_form form, FILE *out)
{
    if (form == CAIRN_MANUAL_BASH)
        fputs(bash_end, out);
    else if (form == CAIRN_MANUAL_ZSH)
        fputs(zsh_end, out);
}
