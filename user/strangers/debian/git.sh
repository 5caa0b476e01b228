# git: a repository with a thousand files, its history, its clones.
export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@example GIT_COMMITTER_NAME=C GIT_COMMITTER_EMAIL=c@example
export GIT_AUTHOR_DATE='1000000000 +0000' GIT_COMMITTER_DATE='1000000000 +0000' HOME=$PWD
git config --global init.defaultBranch main; git config --global advice.detachedHead false; git config --global gc.auto 0
git init -q repo; cd repo || exit 1
for d in $(seq 1 20); do mkdir "d$d"; for f in $(seq 1 50); do echo "file $d/$f" >"d$d/f$f"; done; done
git add .; git commit -qm 'a thousand files'; git rev-parse HEAD; git ls-files | wc -l
for i in 1 2 3; do for f in d$i/*; do echo "line $i" >>"$f"; done; git commit -qam "change $i"; done
git log --format='%h %s' --shortstat; git status --short | wc -l
git checkout -qb branch HEAD~2; echo other >new; git add new; git commit -qm 'on a branch'; git checkout -q main; git merge -q --no-edit branch -m merged; git log --oneline --graph | cat
git mv d1/f1 moved; git rm -q d1/f2; echo changed >d2/f2; git diff --stat HEAD | tail -n 1; git stash -q; git stash pop -q; git status --short; git commit -qam 'moved'
git diff HEAD~1 --name-status -M | cat; git blame -s d1/f3 | cat; git grep -c 'line 1' HEAD -- d1 | head -n 2; git show --stat --format=%s HEAD~1 | tail -n 2
git tag -a v1 -m one; git describe; git fsck --full --strict 2>&1; git gc -q; git count-objects -v | grep -E 'count|in-pack|packs'; git fsck 2>&1
cd ..; git clone -q repo copy; git -C copy log --oneline | wc -l; git clone -q --bare "file://$PWD/repo" bare.git; git -C copy remote set-url origin ../bare.git
cd copy; echo pushed >p; git add p; git commit -qm pushed; git push -q origin main; cd ..; git -C bare.git log -1 --format=%s main; git -C repo pull -q ../bare.git main; git -C repo log -1 --format=%s
git -C repo archive --format=tar HEAD | tar -t | wc -l; git -C repo bundle create -q ../b.bundle main; git clone -q b.bundle from-bundle; git -C from-bundle rev-parse HEAD | cmp - <(git -C repo rev-parse HEAD) && echo the same commit
diff -r --exclude=.git repo copy && echo the same files; git -C copy worktree add -q ../tree v1; ls tree | wc -l; git -C copy bisect start -q HEAD HEAD~3 2>/dev/null | wc -l
