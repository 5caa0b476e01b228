# gcc and make build a program of several files, with a library, and it runs.
mkdir -p src; cd src || exit 1
cat >sum.h <<'C'
#ifndef SUM_H
#define SUM_H
long sum(const long *values, int count);
double root(double x);
extern __thread int per_thread;
#endif
C
cat >sum.c <<'C'
#include "sum.h"
#include <math.h>
__thread int per_thread = 7;
long sum(const long *values, int count) { long total = 0; for (int i = 0; i < count; i++) total += values[i]; return total; }
double root(double x) { return sqrt(x); }
C
cat >work.c <<'C'
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "sum.h"
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;
static long total;
static void *work(void *n) {
    long values[100];
    for (int i = 0; i < 100; i++) values[i] = (long)n * i;
    per_thread += (long)n;
    pthread_barrier_wait(&barrier);
    pthread_mutex_lock(&lock);
    total += sum(values, 100) + per_thread;
    pthread_mutex_unlock(&lock);
    return NULL;
}
long threads(int count) {
    pthread_t ids[count];
    pthread_barrier_init(&barrier, NULL, count);
    for (long i = 0; i < count; i++) if (pthread_create(&ids[i], NULL, work, (void *)i)) exit(9);
    for (int i = 0; i < count; i++) pthread_join(ids[i], NULL);
    return total;
}
C
cat >main.c <<'C'
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "sum.h"
long threads(int count);
static sigjmp_buf back;
static void fault(int signal, siginfo_t *info, void *context) { (void)context; siglongjmp(back, signal * 1000 + (info->si_addr == (void *)16)); }
int main(int argc, char **argv) {
    printf("%d arguments, %s\n", argc - 1, strrchr(argv[0], '/') + 1);
    printf("threads: %ld, root: %.6f\n", threads(8), root(2));
    struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    int caught = sigsetjmp(back, 1);
    if (!caught) *(volatile char *)16 = 1;
    printf("fault: %d\n", caught);
    errno = 0; FILE *none = fopen("/does/not/exist", "r"); printf("%p %s\n", (void *)none, strerror(errno));
    char *big = malloc(64 << 20); memset(big, 1, 64 << 20); printf("%d\n", big[12345678]); free(big);
    return argc == 3 ? 42 : 1;
}
C
cat >Makefile <<'M'
CFLAGS = -O2 -Wall -Wextra -Werror -Wno-array-bounds -fPIC -pthread -g
all: program static-program
program: main.o work.o libsum.so
	$(CC) -pthread -o $@ main.o work.o -L. -lsum -Wl,-rpath,'$$ORIGIN'
static-program: main.o work.o libsum.a
	$(CC) -static -pthread -o $@ main.o work.o libsum.a -lm
libsum.so: sum.o
	$(CC) -shared -o $@ $< -lm
libsum.a: sum.o
	$(AR) rcs $@ $<
%.o: %.c sum.h
	$(CC) $(CFLAGS) -c -o $@ $<
clean:
	rm -f *.o *.so *.a program static-program
.PHONY: all clean
M
make -s -j3 && echo built
./program a b; echo "status $?"
./static-program; echo "status $?"
make -s && make -q && echo up to date
touch sum.h; make -n | grep -c 'sum.o\|main.o\|work.o'
ldd ./program | sed 's/ (0x.*//' | sort | sed 's/^[[:space:]]*//;s|=> /.*/src|=> src|'
nm -D libsum.so | grep ' T ' | cut -d' ' -f2-; objdump -f program | grep -c 'elf64-x86-64'; strip program && ./program | tail -n 1
echo 'int main(void) { return undefined_thing; }' >bad.c; gcc bad.c 2>&1 | grep -c 'undeclared'; echo 'int main(void){return 0;}' | gcc -x c -o ok - && ./ok && echo ok
make -s clean; ls | wc -l
