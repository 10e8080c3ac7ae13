// The checks of the suite of MCP clients with the TypeScript SDKs. The last line printed is the result as JSON.
// Usage: node mcp_client.mjs sdk|client legacy|2026-07-28 TARGETS (see mcp_clients.py)
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [kind, era, targets] = [process.argv[2], process.argv[3], JSON.parse(process.argv[4])];
const require = createRequire(`${process.cwd()}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const root = kind === 'sdk' ? '@modelcontextprotocol/sdk' : '@modelcontextprotocol/client';
const { Client } = await load(kind === 'sdk' ? `${root}/client/index.js` : root);
const { StdioClientTransport } = await load(kind === 'sdk' ? `${root}/client/stdio.js` : `${root}/stdio`);
const { StreamableHTTPClientTransport } = await load(kind === 'sdk' ? `${root}/client/streamableHttp.js` : root);
const types = kind === 'sdk' ? await load(`${root}/types.js`) : null;
const { default: Ajv2020 } = await load('ajv/dist/2020.js');
const { default: addFormats } = await load('ajv-formats');

const checks = {};
const unexpected = [];
let changes = 0;

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function until(isTrue) {
  for (let i = 0; i < 300 && !(await isTrue()); i += 1) await pause(50);
  if (!(await isTrue())) throw new Error('it did not happen');
}

function assert(isTrue, what) {
  if (!isTrue) throw new Error(what);
}

async function check(name, run) {
  try {
    checks[name] = (await run()) ?? 'ok';
  } catch (error) {
    checks[name] = `failed: ${error.message}`;
  }
}

async function open(target) {
  const options = { capabilities: {} };
  if (kind === 'client') {
    options.versionNegotiation = { mode: era === 'legacy' ? 'legacy' : { pin: era } };
    options.listChanged = { tools: { onChanged: () => { changes += 1; }, autoRefresh: true, debounceMs: 0 } };
  }
  const client = new Client({ name: 'checks', version: '1' }, options);
  client.onerror = (error) => unexpected.push(error.message);
  if (kind === 'sdk') client.setNotificationHandler(types.ToolListChangedNotificationSchema, () => { changes += 1; });
  const [command, ...args] = target.command ?? [];
  const transport = target.url
    ? new StreamableHTTPClientTransport(new URL(target.url))
    : new StdioClientTransport({ command, args, env: process.env, stderr: 'inherit' });
  await client.connect(transport);
  return [client, transport];
}

const call = (client, name, args, options) =>
  kind === 'sdk'
    ? client.callTool({ name, arguments: args }, undefined, options)
    : client.callTool({ name, arguments: args }, options);

const texts = (result) => result.content.map((block) => block.text).join('');

let client;
let transport;
await check('connect', async () => { [client, transport] = await open(targets.plain); });
await check('list', async () => {
  const { tools } = await client.listTools();
  assert(tools.length > 10, `${tools.length} tools`);
  for (const tool of tools) {
    assert(/^[a-zA-Z][a-zA-Z0-9_-]{0,63}$/.test(tool.name), tool.name);
    for (const schema of [tool.inputSchema, tool.outputSchema].filter(Boolean)) {
      assert(schema.type === 'object' && schema.properties, `${tool.name}: no object`);
      const strict = new Ajv2020({ strict: true, allowUnionTypes: false });
      addFormats(strict);
      strict.compile(schema);
    }
  }
});
await check('call', async () => {
  const saved = await call(client, 'save__decision', { topic: 'auth', decision: 'Use JWT', reasoning: 'no state' });
  assert(JSON.stringify(JSON.parse(texts(saved))) === JSON.stringify(saved.structuredContent), 'structure and text differ');
  const found = await call(client, 'search__by_context', { query: 'How do users log in? JWT' });
  assert(found.structuredContent.found[0].content.includes('JWT'), texts(found));
});
await check('error', async () => {
  const wrong = await call(client, 'save__decision', {});
  assert(wrong.isError && texts(wrong).includes('invalid_argument'), texts(wrong));
});
await check('resources', async () => {
  assert((await client.listResources()).resources.length === 1, 'no resource');
  assert((await client.listResourceTemplates()).resourceTemplates.length === 1, 'no template');
  const read = await client.readResource({ uri: 'mama-structs://recall/JWT' });
  assert(read.contents[0].text.includes('JWT'), JSON.stringify(read));
});
await check('prompts', async () => {
  assert((await client.listPrompts()).prompts[0].name === 'recall', 'no prompt');
  const prompt = await client.getPrompt({ name: 'recall', arguments: { message: 'JWT?' } });
  assert(prompt.messages.length === 2, JSON.stringify(prompt));
});
await check('ping', async () => (era === 'legacy' ? void (await client.ping()) : 'not in this protocol'));
await check('end', async () => {
  if (transport.sessionId) await transport.terminateSession();
  await client.close();
});

await check('host tools', async () => {
  await pause(300);
  unexpected.length = 0; // the end of the other connection aborted its streams
  [client, transport] = await open(targets.embedded);
  await client.listTools();
  await pause(500);
});
await check('failing tool', async () => {
  const failed = await call(client, 'fail', {});
  assert(failed.isError && texts(failed).includes('broken on purpose'), texts(failed));
});
await check('progress', async () => {
  const heard = [];
  await call(client, 'steps', { count: 2 }, { onprogress: (one) => heard.push(`${one.progress}/${one.total}: ${one.message}`) });
  assert(heard.join() === '1/2: step 1,2/2: step 2', heard.join());
});
await check('cancel', async () => {
  const stop = new AbortController();
  const waiting = call(client, 'wait', {}, { signal: stop.signal }).then(() => 'answered', () => 'cancelled');
  const counts = async () => (await call(client, 'count_waits', {})).structuredContent;
  await until(async () => (await counts()).started === 1);
  stop.abort('enough');
  assert((await waiting) === 'cancelled', 'it was answered');
  await until(async () => (await counts()).cancelled === 1);
  await pause(200);
  assert(unexpected.length === 0, unexpected.join());
});
await check('list_changed', async () => {
  const before = changes;
  await call(client, 'grow', {});
  await until(() => changes > before);
  assert((await client.listTools()).tools.some((tool) => tool.name === 'grown'), 'it is not listed');
  await call(client, 'grow', {});
  await until(() => changes > before + 1);
});
await client.close();
console.log(JSON.stringify({ checks, unexpected }));
process.exit(0);
