import sys,collections
import os; sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from clex import *
D=collections.defaultdict(set)
for f in tracked('*.c','*.h'):
    for n,d,l in statics(read(f)): D[n].add(f)
prod=lambda f:'/test/' not in f and f.split('/')[0] in('components','interpose','tools')
sh={n:v for n,v in D.items() if len(v)>1}
print(len(sh),sum(map(len,sh.values())), 'prod shared:',[(n,sorted(v)) for n,v in sh.items() if any(map(prod,v))][:40])
c=collections.Counter(n for n,v in sh.items() for f in v)
print(c.most_common(40))
