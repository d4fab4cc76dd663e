#!/usr/bin/env python3
"""check_pages.py PAGE...: each `path` that a page names is there (below the tree, or below components/); each `name` of C is somewhere."""
import os, re, subprocess, sys
top = subprocess.run(['git', 'rev-parse', '--show-toplevel'], capture_output=True, text=True).stdout.strip()
for page in sys.argv[1:]:
    for token in sorted(set(re.findall(r'`([^`\n]+)`', open(page).read()))):
        if re.fullmatch(r'<vma/\w+\.h>', token):
            if not any(os.path.exists(os.path.join(top, 'components', c, 'include', token[1:-1])) for c in os.listdir(os.path.join(top, 'components'))) and not os.path.exists(os.path.join(top, 'tests/include', token[1:-1])):
                print(page, 'no header', token)
        elif re.fullmatch(r'[\w./*@-]+\.(c|h|sh|md|mk|py|txt|bpf\.c)|[\w./-]+/', token) and 'X' not in token and 'NAME' not in token and '*' not in token:
            if not any(os.path.exists(os.path.join(top, b, token)) for b in ('.', 'components', 'mk', 'docs', 'components/nic', 'components/tcp', 'components/conf', 'components/tcp/test', 'interpose')):
                print(page, 'no file', token)
        elif re.fullmatch(r'(vma_|VMA_|tcp_|struct )\w+(\(\))?', token):
            name = re.sub(r'^struct ', '', token).rstrip('()')
            if subprocess.run(['git', '-C', top, 'grep', '-qw', name, '--', 'components', 'interpose', 'tests']).returncode:
                print(page, 'no name', token)
