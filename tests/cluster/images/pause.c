/* The one program of the testbed's own image. Without arguments it is the sandbox that holds a
 * pod's namespaces: it waits and buries orphans. With them it is a job: `pause say TEXT... exits
 * CODE` prints the texts and ends so, `pause show FILE` prints a file. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) {
    (void)number;
    _exit(0);
}

static void bury(int number) {
    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

static int show(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return perror(path), 1;
    for (int letter; (letter = getc(file)) != EOF;) putchar(letter);
    return 0;
}

int main(int count, char **words) {
    int at = 2;
    if (count > 1 && !strcmp(words[1], "say")) {
        for (; at < count && strcmp(words[at], "exits"); at++) puts(words[at]);
        return at + 1 < count ? atoi(words[at + 1]) : 0;
    }
    if (count == 3 && !strcmp(words[1], "show")) return show(words[2]);
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, bury);
    for (;;) pause();
}
