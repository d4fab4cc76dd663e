#!/usr/bin/env python3
"""pages.py FOLDER: LICENSE, NOTICE, CONTRIBUTING.md, docs/glossary.md and docs/testing.md of FOLDER come into the tree at
hand; the README names them, `make install` installs them. What is not found is said."""
import os, shutil, subprocess, sys
folder = os.path.abspath(sys.argv[1])
os.chdir(subprocess.run(['git', 'rev-parse', '--show-toplevel'], capture_output=True, text=True).stdout.strip())
for page in ('LICENSE', 'NOTICE', 'CONTRIBUTING.md', 'docs/glossary.md', 'docs/testing.md'):
    shutil.copyfile(os.path.join(folder, page), page)


def change(path, old, new):
    text = open(path).read()
    if new in text:
        return
    if text.count(old) != 1:
        return print('pages: %s: %d times: %s' % (path, text.count(old), old), file=sys.stderr)
    open(path, 'w').write(text.replace(old, new))


change('README.md', 'SECURITY.md     who is protected from whom, and what is not\n',
       'SECURITY.md     who is protected from whom, and what is not\n'
       'CONTRIBUTING.md how to build, test and measure; where a new parameter, counter, call or backend goes\n'
       'LICENSE, NOTICE BSD-2-Clause; what the built library contains of others\n')
change('README.md', 'custom-stack.md, benchmarks.md\n', 'custom-stack.md, benchmarks.md,\n                glossary.md (the words), testing.md (the tests, and how one is run alone)\n')
change('Makefile', 'docs/*.md SECURITY.md $(DESTDIR)', 'docs/*.md SECURITY.md LICENSE NOTICE $(DESTDIR)')
subprocess.run(['git', 'add', 'LICENSE', 'NOTICE', 'CONTRIBUTING.md', 'docs', 'README.md', 'Makefile'], check=True)
