"""Targets, scripts and programs whose names say that they deliver or install something: a person decides, although a sandbox would stop them.

So do tasks whose names say that they delete a database: a file in a trusted project, or one that a sandbox cannot reach.
"""

from pathlib import Path

import pytest

from approval.command_world import make_project, sandbox_verdict

ASKS = [
    "make deploy",
    "make -j2 deploy-staging",
    "npm run deploy",
    "npm run publish:beta -- --dry",
    "yarn deploy",
    "pnpm run deploy",
    "just deploy prod",
    "rake deploy",
    "./gradlew publish",
    "bash scripts/deploy.sh",
    "./scripts/deploy.sh prod",
    "python3 deploy.py",
    "playwright install chromium",
    "npx playwright install",
    "some-cli login",
    "some-cli deploy",
    "openssl s_client -connect example.org:443",
    "ssh-keygen -t ed25519 -f ~/.ssh/new -N ''",
    "npm run release",
    "yarn release",
    "npm run semantic-release",
    "make release",
    "./scripts/release.sh 1.2",
    "bash scripts/publish-docs.sh",
    "./gradlew :lib:publishToMavenLocal",
    "./gradlew installDebug",
    "mvn -q dependency:go-offline",
    "make install",
    "ninja -C build install",
    "cmake --install build",
    "python3 setup.py install",
    "bash install.sh",
    "make install PREFIX=/usr/local",
    "make install prefix=$HOME/.local",
    "cmake --install build --prefix=../out",
    "bundle",
    "/etc/init.d/nginx restart",
    "npm init vite",
    "npm config set registry https://example.org",
    "npm cache clean --force",
    "npm version patch",
    "poetry config pypi-token.pypi x",
    "conda env create -f environment.yml",
    "mise use node@20",
    "pyenv global 3.12",
    "pre-commit autoupdate",
    "some-cli update",
    "some-cli --api https://api.example.org get",
    "some-cli postgres://u:p@db.example.org/app",
    "mongodump",
    "yt-dlp https://example.org/v",
    "nginx -s reload",
    "python3 manage.py flush --noinput --settings=app.production",
    "./manage.py reset_db",
    "bin/rails db:drop db:create",
    "RAILS_ENV=production bundle exec rake db:reset",
    "php artisan db:wipe --force",
    "php bin/console doctrine:database:drop --force",
    "mix ecto.reset",
    "npm run db:reset",
    "make reset-db",
    "playwright migrate && prisma migrate reset --force",
    "prisma db push --force-reset",
]
RUNS = [
    "RAILS_ENV=test bin/rails db:drop db:create",
    "bundle exec rake db:reset RAILS_ENV=test",
    "MIX_ENV=test mix ecto.reset",
    "bin/rails db:migrate db:seed",
    "php bin/console doctrine:schema:drop --dump-sql",
    "make -n reset-db",
    "python3 manage.py migrate",
    "python3 scripts/cache.py flush",
    "grep -rn db:reset .",
    "prisma migrate status",
    "npm test -- db-reset",
    "npx playwright test db-reset",
    "php vendor/bin/phpunit --filter db_reset",
    "rg @/home src",
    "make -n deploy",
    "make all",
    "make DEPLOY=1 test",
    "npm run build",
    "npm test -- deploy",
    "bash -n scripts/deploy.sh",
    "cat scripts/deploy.sh",
    "pytest tests/test_upload.py",
    "python3 src/upload_handler.py",
    "some-cli status",
    "npx playwright test",
    "openssl version",
    "ssh-keygen -t ed25519 -f key -N ''",
    "make install DESTDIR=out",
    "make install DESTDIR=$PWD/out",
    "make -n install",
    "npm run release:dry",
    "bash scripts/check-release.sh",
    "./bin/tool pull --help",
    "bundle --version",
    "cmake --install build --prefix out",
    "mvn clean install",
    "./gradlew installDist",
    "./scripts/test-release.sh",
    "python3 tests/test_deploy.py",
    "npm run build:release",
    "npm init -y",
    "npm config get registry",
    "npm version patch --no-git-tag-version",
    "poetry version patch",
    "poetry config --list",
    "conda env list",
    "mise run test",
    "pyenv versions",
    "pre-commit run --all-files",
    "some-cli --api http://localhost:8000 get",
    "go run main.go -v",
    "nginx -t",
    "git commit --allow-empty -m 'see https://example.org/x'",
    "sed s/a/b/ README.md | grep https://example.org",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = make_project(tmp_path)
    (project / "node_modules/.bin").mkdir(parents=True)
    (project / "node_modules/.bin/playwright").touch()
    return project


@pytest.mark.parametrize("line", ASKS)
def test_a_delivery_needs_approval(project: Path, line: str) -> None:
    assert sandbox_verdict(project, line, trusted=True).sandbox is None


@pytest.mark.parametrize("line", RUNS)
def test_other_targets_run(project: Path, line: str) -> None:
    found = sandbox_verdict(project, line, trusted=True)
    assert found.sandbox, found.reasons
