/*
 * The image that unlisted.c maps without the loader: nothing in it is initialised or relocated. Its
 * entry point is `rounds`.
 */
__declspec(dllexport) int rounds(int (*back)(int), int count)
{
    volatile int sum = 0;
    volatile char room[200];
    for (int i = 0; i < count; i++) {
        room[i % 200] = (char)i;
        /* Some work in the image itself, so that samples lie here too. */
        for (int j = 0; j < 20000; j++)
            sum += j;
        sum += back(i) + room[i % 200];
    }
    return sum;
}
