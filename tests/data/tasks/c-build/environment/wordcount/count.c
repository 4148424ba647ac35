#include "count.h"

unsigned long count_words(FILE *input)
{
    unsigned long words = 1;
    char c;
    while ((c = fgetc(input)) != EOF)
        if (c == ' ')
            words++;
    return words;
}
