/* How a script's text is handed to its interpreter: see payload/scripts.py. */

/* MFD_EXEC, which not all headers have, nor kernels before 6.3. Where vm.memfd_noexec is 2 it is refused,
 * and only the scripts run that their interpreters read. */
enum { EXECUTABLE = 0x10 };
/* Words of an interpreter: its path, its name, a program, and the script's path. */
enum { LEAST_WORDS = 4 };

/* Open after exec, too: the interpreter opens the script by the name of this descriptor. */
static long write_script(const char *text, size_t length)
{
	long fd = call(memfd_create, "script", EXECUTABLE);

	if (fd < 0)
		fd = must(call(memfd_create, "script", 0), "setting", "");
	for (size_t done = 0; done < length;)
		done += (size_t)must(call(write, fd, text + done, length - done), "setting", "");
	return fd;
}

/* The program with the number of the descriptor in place of each mark. */
static char *with_number(const char *program, long fd)
{
	char digits[24], *number = decimal((unsigned long)fd, digits + sizeof digits), *made, *to;
	size_t marks = 0;

	for (const char *each = program; *each; each++)
		marks += *each == '~';
	made = to = take(strlen(program) + marks * sizeof digits + 1);
	for (; *program; program++) {
		if (*program != '~') {
			*to++ = *program;
			continue;
		}
		memcpy(to, number, strlen(number));
		to += strlen(number);
	}
	*to = '\0';
	return made;
}

/* Run a script from the file in memory, so that it runs as it was submitted. */
_Noreturn static void execute_script(const struct texts *script, long fd, char **interpreter, char **argv,
				     char **env)
{
	size_t count = count_of(interpreter), rest = count_of(argv);
	char path[40], **words = take((count + rest + 2) * sizeof *words);

	name_descriptor(path, fd);
	if (count) {
		memcpy(words, interpreter + 1, (count - 1) * sizeof *words);
		words[count - 3] = with_number(interpreter[count - 2], fd);
		memcpy(words + count - 1, argv + 1, rest * sizeof *words);
		fail("script", call(execve, interpreter[0], words, env), argv[0]);
	}
	if (script->end - script->at >= 2 && script->at[0] == '#' && script->at[1] == '!')
		fail("script", call(execve, path, argv, env), argv[0]);
	words[0] = "sh";
	words[1] = path;
	memcpy(words + 2, argv + 1, rest * sizeof *words);
	fail("script", call(execve, "/bin/sh", words, env), argv[0]);
}
