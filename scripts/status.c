/* An extension of GNU make: $(leave N) ends make itself with the status N.
 *
 * Make turns every status of a recipe that is not 0 into 2; `make run CMD=...` is to end with the
 * command's own. The Makefile loads this once the command has ended. */
#include <stdlib.h>
#include <gnumake.h>

/* Make insists on this name. The project's licences, Apache-2.0 or MIT, allow it. */
int plugin_is_GPL_compatible;

static char *leave(const char *name, unsigned int count, char **words)
{
    (void)name;
    (void)count;
    exit(atoi(words[0]));
}

int status_gmk_setup(void)
{
    gmk_add_function("leave", leave, 1, 1, GMK_FUNC_DEFAULT);
    return 1;
}
