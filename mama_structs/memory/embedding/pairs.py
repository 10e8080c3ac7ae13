"""Sentences by which an embedder of unknown scale is calibrated."""

from __future__ import annotations

from typing import Final

# A sentence, another about the same matter, and one about a different matter of the same world of work.
# They are of the kind that agents remember: decisions, findings and notes; English, Korean, and one in each.
TRIPLES: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "We keep user sessions in Redis so that a restart logs nobody out.",
        "Logins now survive a deploy, because the session data moved to Redis.",
        "The nightly report is written to a bucket instead of the local disk.",
    ),
    (
        "Retry failed payments three times with growing pauses.",
        "When charging a card fails, we wait longer each time and give up after the third attempt.",
        "Refunds above 500 dollars need the approval of a second person.",
    ),
    (
        "The search box feels slow since results wait for the ranking model.",
        "Users complain about lag while typing a query; scoring the hits takes most of the time.",
        "The settings page does not remember the chosen language.",
    ),
    (
        "Switch the build from make to bazel for caching between machines.",
        "Compiling is to share its artifacts across the team, hence bazel replaces our makefiles.",
        "The office printer is to be replaced before summer.",
    ),
    (
        "Postgres was chosen over MongoDB because we need transactions across tables.",
        "A relational database won: multi-row consistency matters more to us than a free schema.",
        "Postgres backups are kept for thirty days in another region.",
    ),
    (
        "The crash came from reading a file that another thread had already closed.",
        "Root cause of the outage: a use-after-close race on the file handle.",
        "Crash reports are now grouped by the version of the app.",
    ),
    (
        "Rate limit the public API to 100 calls a minute for each key.",
        "Every token may send at most a hundred requests per minute to our endpoints.",
        "The public API gets a new page of documentation for webhooks.",
    ),
    (
        "Our guild should build shields before it attacks the northern planet.",
        "Defence first: the raid in the north waits until the shield generators stand.",
        "The guild elected a new treasurer last night.",
    ),
    (
        "The memory leak was the image cache, which never dropped anything.",
        "Unbounded caching of pictures explains why the process kept growing.",
        "Thumbnails are cropped to squares on mobile devices.",
    ),
    (
        "Ship the redesign behind a flag to five percent of the users first.",
        "The new look goes to a small share of people before everyone gets it.",
        "The redesign uses a darker blue for headings.",
    ),
    (
        "Move the meeting notes out of chat into the wiki.",
        "Minutes belong in the knowledge base and no longer in the messenger.",
        "The chat bot answers questions about holidays now.",
    ),
    (
        "Timestamps are stored in UTC and shown in the reader's own zone.",
        "Save all times as universal time; convert to local time only when displaying them.",
        "Old records are archived after two years.",
    ),
    (
        "The test suite fails at random because two tests share a port.",
        "Flaky CI runs: parallel cases bind the same socket and collide.",
        "The test suite now also runs on Windows.",
    ),
    (
        "Customers cancel most often in their first week, before they invite a colleague.",
        "Churn is highest among accounts that stay alone during the first seven days.",
        "Customers in Canada pay in their own currency from May on.",
    ),
    (
        "Passwords are hashed with argon2 instead of bcrypt.",
        "We migrated credential storage to argon2id.",
        "Passwords may now contain spaces and emoji.",
    ),
    (
        "The crawler must respect robots.txt and pause between requests.",
        "Be polite when fetching sites: obey their rules and throttle the spider.",
        "The crawler's dashboard shows errors in red.",
    ),
    (
        "세션을 레디스에 저장해서 재시작해도 로그아웃되지 않게 했다.",
        "배포 후에도 로그인이 유지되도록 세션 저장소를 레디스로 옮겼다.",
        "야간 보고서를 로컬 디스크 대신 버킷에 쓰기로 했다.",
    ),
    (
        "결제가 실패하면 간격을 늘려 가며 세 번까지 다시 시도한다.",
        "카드 승인이 안 되면 점점 오래 기다렸다가 세 번째에 포기한다.",
        "오십만 원이 넘는 환불은 다른 사람의 승인이 필요하다.",
    ),
    (
        "메모리 누수의 원인은 아무것도 버리지 않는 이미지 캐시였다.",
        "그림을 한없이 캐시에 쌓아 두어서 프로세스가 계속 커졌다.",
        "모바일에서는 섬네일을 정사각형으로 자른다.",
    ),
    (
        "새 디자인은 먼저 사용자 오 퍼센트에게만 공개한다.",
        "개편된 화면을 일부 이용자에게 먼저 보여 준 뒤 모두에게 연다.",
        "새 디자인의 제목 색은 더 짙은 파란색이다.",
    ),
    (
        "북쪽 행성을 공격하기 전에 방어막부터 짓는다.",
        "수비가 먼저다. 보호막이 완성될 때까지 북쪽 습격은 미룬다.",
        "어젯밤 길드가 새 회계 담당을 뽑았다.",
    ),
    (
        "두 테스트가 같은 포트를 써서 가끔 실패한다.",
        "병렬로 도는 테스트끼리 소켓이 겹쳐 빌드가 불안정했다.",
        "이제 윈도우에서도 테스트를 돌린다.",
    ),
    (
        "시간은 모두 협정 세계시로 저장하고 화면에서만 현지 시각으로 바꾼다.",
        "시각 데이터는 UTC로 기록하며 보여 줄 때 사용자 시간대로 변환한다.",
        "이 년이 지난 기록은 따로 보관한다.",
    ),
    (
        "트랜잭션이 필요해서 몽고디비 대신 포스트그레스를 골랐다.",
        "여러 테이블의 일관성이 중요해 관계형 데이터베이스로 정했다.",
        "데이터베이스 백업은 다른 지역에 삼십 일 동안 보관한다.",
    ),
    (
        "공개 API는 키마다 분당 백 번으로 호출을 제한한다.",
        "토큰 하나가 일 분에 보낼 수 있는 요청은 최대 백 건이다.",
        "웹훅을 설명하는 문서 페이지를 새로 만든다.",
    ),
    (
        "크롤러는 요청 사이에 쉬고 사이트의 규칙을 지켜야 한다.",
        "남의 사이트를 긁을 때는 robots.txt를 따르고 속도를 늦춘다.",
        "크롤러 대시보드에서 오류는 빨간색으로 보인다.",
    ),
    (
        "We dropped GraphQL and went back to plain REST endpoints.",
        "그래프큐엘을 포기하고 단순한 REST 방식으로 돌아갔다.",
        "엔드포인트 이름을 모두 소문자로 바꾸었다.",
    ),
    (
        "The energy budget of the base is too small for another refinery.",
        "기지의 전력이 부족해서 정제소를 하나 더 돌릴 수 없다.",
        "기지 이름을 투표로 정하기로 했다.",
    ),
    (
        "로그에 개인 정보가 남지 않도록 이메일 주소를 가린다.",
        "Mask e-mail addresses in the logs so that they hold no personal data.",
        "Logs are shipped to the new server every five minutes.",
    ),
    (
        "배포는 금요일 오후에 하지 않는다.",
        "Nothing goes to production late on a Friday.",
        "The team lunch moves from Friday to Thursday.",
    ),
    (
        "Uploads larger than 20 MB are split into parts and resumed after a broken connection.",
        "큰 파일은 나누어 올리고, 연결이 끊기면 이어서 올린다.",
        "올린 파일의 이름에는 날짜를 붙인다.",
    ),
    (
        "알림이 너무 많아서 하루에 한 번 모아서 보내기로 했다.",
        "Notifications are bundled into one daily digest, since people got too many.",
        "Notifications use the system's default sound.",
    ),
)
