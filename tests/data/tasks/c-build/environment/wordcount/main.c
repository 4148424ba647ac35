#include <stdio.h>

#include "count.h"

int main(void)
{
    printf("%lu\n", count_words(stdin));
    return 0;
}
