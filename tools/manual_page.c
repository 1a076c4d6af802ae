/* tools/manual_page.c - man pages, in the man macros of groff and mandoc. */
#include "tools/manual.h"

#include <stdlib.h>
#include <string.h>

/* A line of roff ends at the first space after LINE_COLUMNS, or after a full stop and half of them.
 * In a verb's text, a term of a list ends before TERM_INDENT. */
enum { LINE_COLUMNS = 64, TERM_INDENT = 8 };

static const char release_date[] = "2026-11-28";

static const struct {
    const char *name, *meaning;
} exits[] =
    {
        {"0", "done"},
        {"1", "failed"},
        {"2", "done, with warnings; `verify` repaired damage"},
        {"3", "the state is critical; `verify` found loss"},
        {"4", "nothing can be restored; `replan` proposes or changes nothing"},
        {"64", "wrong usage"},
        {"65", "bad input file"},
        {"69", "an agent or peer cannot be reached"},
        {"74", "input or output failed"},
        {"75", "try again later"},
        {"77", "not allowed"},
        {"78", "bad configuration"},
},
  environment[] = {
      {"CAIRN_AGENT", "socket of the agent to use, as `--agent`"},
      {"CAIRN_JOB", "job whose agent to use, if several agents run on this node"},
      {"CAIRN_TIMING", "1: `cairn run` loads NCCL's profiler plugin"},
};

/* Writes text[len]; `words` in backticks are bold. Lines are broken if `filled`. */
static void
put(FILE *out, const char *text, size_t len, bool filled)
{
    size_t column = 0;
    bool bold = false;

    for (size_t i = 0; i < len; i++) {
        bool ends = i > 0 && text[i - 1] == '.';

        if (filled && text[i] == ' ' && column > (ends ? LINE_COLUMNS / 2 : LINE_COLUMNS)) {
            fputc('\n', out);
            column = 0;
            continue;
        }
        if (column++ == 0 && strchr(".'", text[i]))
            fputs("\\&", out);
        switch (text[i]) {
        case '`':
            bold = !bold;
            fputs(bold ? "\\fB" : "\\fR", out);
            break;
        case '\\':
            fputs("\\e", out);
            break;
        case '"':
            fputs("\\(dq", out);
            break;
        case '\'':
            fputs("\\(aq", out);
            break;
        case '-':
            fputs("\\-", out);
            break;
        case '^':
            fputs("\\(ha", out);
            break;
        case '~':
            fputs("\\(ti", out);
            break;
        default:
            fputc(text[i], out);
        }
    }
    fputc('\n', out);
}

static void
put_text(FILE *out, const char *text)
{
    put(out, text, strlen(text), true);
}

/* Lines as they are. */
static void
put_lines(FILE *out, const char *text)
{
    fputs(".nf\n", out);
    while (*text) {
        size_t len = strcspn(text, "\n");

        put(out, text, len, false);
        text += len + (text[len] == '\n');
    }
    fputs(".fi\n", out);
}

/* An item of a list: the term, with its `words`, then the text. */
static void
put_item(FILE *out, const char *term, const char *text, size_t text_len)
{
    fputs(".TP\n", out);
    put(out, term, strlen(term), false);
    if (text_len)
        put(out, text, text_len, true);
    else
        fputs("\\&", out); /* the text follows */
}

/* A verb's `about`: paragraphs, and lists whose items begin with spaces. */
static void
put_about(FILE *out, const char *about)
{
    char term[80];
    bool apart = false; /* the next line that is not an item begins a paragraph */

    while (*about) {
        size_t len = strcspn(about, "\n"), indent = strspn(about, " ");

        if (len == 0) {
            apart = true;
        } else if (indent > 0 && indent < TERM_INDENT) {
            size_t end = indent, text;

            while (end < len && strncmp(about + end, "  ", 2) != 0)
                end++;
            for (text = end; text < len && about[text] == ' ';)
                text++;
            snprintf(term, sizeof term, "`%.*s`", (int)(end - indent), about + indent);
            put_item(out, term, about + text, len - text);
            apart = true;
        } else {
            if (indent == 0 && apart)
                fputs(".PP\n", out);
            put(out, about + indent, len - indent, true);
            apart = apart && indent > 0;
        }
        about += len + (about[len] == '\n');
    }
}

static void
put_option(FILE *out, const struct cairn_flag *flag)
{
    char term[128], letter[16] = "";

    if (flag->letter)
        snprintf(letter, sizeof letter, "`-%c`, ", flag->letter);
    snprintf(term, sizeof term, "%s`--%s`%s%s", letter, flag->name, flag->value ? " " : "",
             flag->value ? flag->value : "");
    put_item(out, term, flag->help, strlen(flag->help));
}

void
cairn_page_print(const struct cairn_usage *usage, FILE *out)
{
    static const struct cairn_flag help = {"help", 'h', NULL, "print the help", NULL, NULL};
    char *more = NULL, synopsis[512];
    size_t more_bytes;
    FILE *memory;

    snprintf(synopsis, sizeof synopsis, "`cairn %s` %s", usage->verb, usage->synopsis);
    fputs(".SH SYNOPSIS\n", out);
    put_text(out, synopsis);
    fputs(".SH DESCRIPTION\n", out);
    put_about(out, usage->about);
    fputs(".SH OPTIONS\n", out);
    for (size_t i = 0; i < usage->flag_count; i++)
        put_option(out, &usage->flags[i]);
    put_option(out, &help);
    memory = usage->more ? open_memstream(&more, &more_bytes) : NULL;
    if (memory) {
        usage->more(memory);
        if (fclose(memory) == 0) {
            fputs(".SH CONFIGURATION\n", out);
            put_lines(out, more);
        }
        free(more);
    }
    fputs(".SH EXAMPLES\n", out);
    put_lines(out, usage->examples);
    fputs(".SH SEE ALSO\n\\fBcairn\\fR(1)\n", out);
}

void
cairn_page_begin(const struct cairn_verbs *verbs, const struct cairn_verb *verb, FILE *out)
{
    fprintf(out, ".TH \"cairn%s%s\" \"1\" \"%s\" \"cairn %s\" \"Cairn\"\n.SH NAME\ncairn%s%s \\- ",
            verb ? "\\-" : "", verb ? verb->name : "", release_date, verbs->release,
            verb ? "\\-" : "", verb ? verb->name : "");
    put_text(out, verb ? verb->help : "keep distributed training jobs alive");
    if (verb)
        return;
    fputs(".SH SYNOPSIS\n\\fBcairn\\fR VERB [OPTIONS]\n.SH DESCRIPTION\n", out);
    put_text(out, "Snapshots the state of a training job into the memory of its nodes, protects "
                  "the snapshots with erasure coding, and restores them after failures. Each verb "
                  "has a page: `man cairn-status`.");
    for (size_t i = 0; i < verbs->count; i++)
        if (!verbs->rows[i].run) {
            fputs(".SS ", out);
            put_text(out, verbs->rows[i].name);
        } else if (verbs->rows[i].help) {
            fprintf(out, ".TP\n\\fBcairn\\-%s\\fR(1)\n", verbs->rows[i].name);
            put_text(out, verbs->rows[i].help);
        }
    fputs(".SH ENVIRONMENT\n", out);
    for (size_t i = 0; i < sizeof environment / sizeof *environment; i++)
        put_item(out, environment[i].name, environment[i].meaning, strlen(environment[i].meaning));
    fputs(".SH EXIT STATUS\n", out);
    for (size_t i = 0; i < sizeof exits / sizeof *exits; i++)
        put_item(out, exits[i].name, exits[i].meaning, strlen(exits[i].meaning));
}
