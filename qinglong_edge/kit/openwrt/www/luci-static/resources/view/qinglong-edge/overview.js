'use strict';
'require view';
'require rpc';
'require poll';
'require ui';
'require dom';

/* Tasks, runs and their output. Every answer comes from the plugin luci.qinglong-edge, in which whole
   numbers are texts: a browser keeps no more than 53 bits of them. */

const ZH = {
	'Durable scheduled tasks: every run is recorded, survives a crash of the scheduler, and keeps a bounded log.':
		'可靠的定时任务：每次运行都有记录，调度器崩溃后仍可继续，日志大小有上限。',
	'Tasks': '任务', 'Runs': '运行记录', 'Task': '任务', 'Schedule': '计划', 'Next run': '下次运行', 'Last run': '上次运行',
	'Run': '编号', 'Status': '状态', 'Started': '开始时间', 'Took': '耗时', 'Exit': '退出码', 'Log': '日志',
	'Start': '运行', 'Stop': '停止', 'Enable': '启用', 'Disable': '禁用', 'disabled': '已禁用', 'manual': '手动', 'at boot': '开机时',
	'All tasks': '全部任务', 'All states': '全部状态', 'Show more': '显示更多', 'Close': '关闭', 'Cancel': '取消', 'Refresh': '刷新',
	'queued': '排队中', 'running': '运行中', 'retry_wait': '等待重试', 'succeeded': '成功', 'failed': '失败', 'cancelled': '已取消',
	'timed_out': '超时', 'lost': '丢失', 'No tasks yet.': '还没有任务。', 'No runs yet.': '还没有运行记录。',
	'The scheduler is running': '调度器运行中', 'The scheduler is not running': '调度器未运行', 'Schedules are paused': '计划已暂停',
	'Start it with:': '用以下命令启动：', 'Pause schedules': '暂停计划', 'Resume schedules': '恢复计划',
	'tasks': '个任务', 'memory': '内存', 'free': '可用空间', 'next': '下次', 'in': '还有', 'ago': '前', 'now': '现在', 'overdue': '已到期',
	'd': '天', 'h': '小时', 'min': '分钟', 's': '秒', 'Needs attention:': '需要处理：', 'This run keeps no log.': '此运行没有日志。',
	'Nothing was written yet.': '还没有输出。', 'cut at its quota': '已按上限截断', 'last': '最后', 'attempt': '第几次尝试',
	'Stop this run?': '停止这次运行？', 'Its processes get TERM, then KILL.': '先向其进程发送 TERM，再发送 KILL。',
	'The scheduler did not answer': '调度器没有应答', 'It stops; this takes a moment.': '正在停止，请稍候。', 'parked': '已搁置',
	'Started run': '已开始运行', 'Add one on the command line:': '在命令行添加：', 'The log was removed to make room.': '日志已被清理。',
	'The clock is not trusted yet': '时钟尚未可信', 'What went wrong': '出错'
};

function chinese() {
	return String(document.documentElement.lang || (L.env && L.env.lang) || '').toLowerCase().indexOf('zh') === 0;
}

function t(text) {
	return chinese() ? (ZH[text] || text) : _(text.replace('_', ' '));
}

const PLUGIN = 'luci.qinglong-edge';
const declared = (method, params) => rpc.declare({
	object: PLUGIN, method: method, params: params || [], expect: { '': {} }, reject: true
});
const call = {
	overview: declared('overview', [ 'task', 'status', 'after' ]),
	tasks: declared('tasks', [ 'after' ]),
	log: declared('log', [ 'run', 'attempt', 'bytes' ]),
	start: declared('start', [ 'task' ]),
	stop: declared('stop', [ 'run' ]),
	enable: declared('enable', [ 'task' ]),
	disable: declared('disable', [ 'task' ]),
	pause: declared('pause'),
	resume: declared('resume')
};

const ENDED = [ 'succeeded', 'failed', 'cancelled', 'timed_out', 'lost' ];
const LOG_BYTES = '65536';

/* Colours are dots, lines and veils over whatever the theme has, light or dark. */
const STYLE = `
.qle { --qle-line: rgba(128,128,128,.28); --qle-veil: rgba(128,128,128,.08); --qle-ok: #2f9e60; --qle-bad: #d6455d; --qle-warn: #d08a1d; --qle-run: #3b82d6; }
.qle-bar { display: flex; flex-wrap: wrap; align-items: center; gap: .4em 1.4em; padding: .8em 1em; margin: 0 0 1.2em; border: 1px solid var(--qle-line); border-left: 4px solid var(--qle-ok); border-radius: 6px; background: var(--qle-veil); }
.qle-bar.qle-down { border-left-color: var(--qle-bad); }
.qle-bar.qle-warn { border-left-color: var(--qle-warn); }
.qle-bar > strong { font-size: 1.05em; }
.qle-bar > .qle-grow { flex: 1; }
.qle-fact { opacity: .8; white-space: nowrap; }
.qle code { font-size: .95em; padding: .1em .4em; border: 0; border-radius: 4px; background: var(--qle-veil); color: inherit; }
.qle-head { display: flex; flex-wrap: wrap; align-items: center; gap: .5em 1em; margin: 1.4em 0 .4em; }
.qle-head h3 { flex: 1; margin: 0; border: 0; padding: 0; min-width: 6em; }
.qle-head select { width: auto; max-width: 14em; margin: 0; }
.qle-table { width: 100%; border-collapse: collapse; }
.qle-table th { text-align: left; font-weight: 600; opacity: .7; padding: .45em .7em; border-bottom: 2px solid var(--qle-line); white-space: nowrap; }
.qle-table td { padding: .5em .7em; border-bottom: 1px solid var(--qle-line); vertical-align: middle; }
.qle-table tbody tr:hover { background: var(--qle-veil); }
.qle-name { font-weight: 700; overflow-wrap: anywhere; }
.qle-off .qle-name, .qle-off .qle-when { opacity: .55; }
.qle-when { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: .92em; }
.qle-when > div { overflow-wrap: anywhere; }
.qle-soft { opacity: .65; font-size: .9em; white-space: nowrap; }
.qle-num { font-variant-numeric: tabular-nums; white-space: nowrap; }
.qle-do { text-align: right; white-space: nowrap; }
.qle-do .btn { margin: .1em 0 .1em .4em; }
.qle-tag { font-size: .8em; padding: .1em .5em; border: 1px solid var(--qle-line); border-radius: 9px; margin-left: .5em; opacity: .8; font-weight: 400; white-space: nowrap; }
.qle-state { white-space: nowrap; }
.qle-state::before { content: ''; display: inline-block; width: .62em; height: .62em; margin-right: .5em; border-radius: 50%; background: rgba(128,128,128,.7); }
.qle-succeeded::before { background: var(--qle-ok); }
.qle-failed::before, .qle-timed_out::before, .qle-lost::before { background: var(--qle-bad); }
.qle-retry_wait::before { background: var(--qle-warn); }
.qle-running::before { background: var(--qle-run); box-shadow: 0 0 0 .22em rgba(59,130,214,.28); }
.qle-none { padding: 1.6em 1em; text-align: center; opacity: .75; border: 1px dashed var(--qle-line); border-radius: 6px; }
.qle-more { text-align: center; margin: .8em 0; }
.qle-log { max-height: 60vh; overflow: auto; margin: .6em 0; padding: .8em 1em; white-space: pre-wrap; overflow-wrap: anywhere; text-align: left; font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace; border: 1px solid var(--qle-line); border-radius: 6px; background: var(--qle-veil); color: inherit; }
@media (max-width: 700px) {
	.qle-table thead { display: none; }
	.qle-table, .qle-table tbody { display: block; }
	.qle-table tr { display: flex; flex-wrap: wrap; gap: .25em 1.3em; padding: .7em .2em; border-bottom: 1px solid var(--qle-line); }
	.qle-table td { display: block; padding: 0; border: 0; }
	.qle-table td[data-label]::before { content: attr(data-label) ' '; opacity: .6; font-size: .9em; margin-right: .3em; }
	.qle-table td.qle-name::before, .qle-table td.qle-when::before, .qle-table td.qle-empty { display: none; }
	.qle-table td.qle-name, .qle-table td.qle-when, .qle-table td.qle-do { width: 100%; }
	.qle-table td.qle-do { text-align: left; padding-top: .3em; }
	.qle-head h3 { width: 100%; flex: none; }
	.qle-do .btn { margin: 0 .5em 0 0; }
	.qle-head select { flex: 1; max-width: none; }
}`;

function pad(number) {
	return String(number).padStart(2, '0');
}

function moment(ms) {
	if (ms == null)
		return '–';
	const at = new Date(Number(ms)), now = new Date();
	const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
	const day = `${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
	if (at.toDateString() === now.toDateString())
		return clock;
	return at.getFullYear() === now.getFullYear() ? `${day} ${clock}` : `${at.getFullYear()}-${day} ${clock}`;
}

function exact(ms) {
	return ms == null ? '' : new Date(Number(ms)).toString();
}

function length(ms) {
	if (ms == null)
		return '–';
	const s = Number(ms) / 1000, gap = chinese() ? '' : ' ';
	if (s < 60)
		return `${s < 10 ? s.toFixed(1) : Math.round(s)}${gap}${t('s')}`;
	if (s < 3600)
		return `${Math.floor(s / 60)}${gap}${t('min')} ${Math.round(s % 60)}${gap}${t('s')}`;
	if (s < 86400)
		return `${Math.floor(s / 3600)}${gap}${t('h')} ${Math.floor(s % 3600 / 60)}${gap}${t('min')}`;
	return `${Math.floor(s / 86400)}${gap}${t('d')} ${Math.floor(s % 86400 / 3600)}${gap}${t('h')}`;
}

function until(ms, now) {
	const left = Number(ms) - Number(now);
	return left <= 0 ? t('overdue') : `${t('in')} ${length(left)}`;
}

function size(bytes) {
	const n = Number(bytes);
	return n < 1024 ? `${n} B` : n < 1048576 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / 1048576).toFixed(1)} MiB`;
}

function state(status) {
	return E('span', { 'class': `qle-state qle-${status}` }, [ t(status) ]);
}

function schedule(each) {
	if (each.kind === 'boot')
		return t('at boot');
	return each.kind === 'every' ? `@every ${each.text}` : each.text;
}

function cell(label, kind, children) {
	return E('td', { 'class': kind, 'data-label': label }, children);
}

function table(heads, rows) {
	return E('table', { 'class': 'qle-table' }, [
		E('thead', {}, [ E('tr', {}, heads.map(head => E('th', {}, [ head ]))) ]),
		E('tbody', {}, rows)
	]);
}

return view.extend({
	handleSave: null,
	handleSaveApply: null,
	handleReset: null,

	load: function() {
		this.shown = { task: '', status: '', taskPages: 1, runPages: 1 };
		return this.fetch();
	},

	/* One answer for the page, further pages only as far as they were opened. */
	fetch: async function() {
		const shown = this.shown;
		let data;
		try {
			data = await call.overview(shown.task, shown.status, '');
			for (let n = 1; n < shown.taskPages && data.tasks_next != null; n++) {
				const more = await call.tasks(data.tasks_next);
				data.tasks = data.tasks.concat(more.tasks || []);
				data.tasks_next = more.tasks_next;
			}
			for (let n = 1; n < shown.runPages && data.runs_next != null; n++) {
				const more = await call.overview(shown.task, shown.status, data.runs_next);
				data.runs = data.runs.concat(more.runs || []);
				data.runs_next = more.runs_next;
			}
		} catch (error) {
			data = { error: { code: 'rpc', message: String(error.message || error) } };
		}
		return data;
	},

	refresh: function() {
		return document.hidden ? Promise.resolve() : this.fetch().then(data => this.fill(data));
	},

	/* A change, then the page anew; what was refused is told in the scheduler's own words. */
	act: function(method, argument) {
		return method(argument).then(answer => {
			if (answer && answer.error)
				this.tell(answer.error);
			else if (answer && answer.stopping)
				ui.addNotification(null, E('p', {}, [ t('It stops; this takes a moment.') ]));
			return this.fetch().then(data => this.fill(data));
		}, error => this.tell({ message: String(error.message || error) }));
	},

	tell: function(error) {
		const code = error.code ? E('code', {}, [ error.code ]) : '';
		ui.addNotification(null, E('p', { 'class': 'qle' }, [ error.message, ' ', code ]), 'danger');
	},

	button: function(label, kind, todo) {
		return E('button', { 'class': `btn cbi-button ${kind}`, 'click': ui.createHandlerFn(this, todo) }, [ label ]);
	},

	render: function(data) {
		this.bar = E('div', {});
		this.tasks = E('div', {});
		this.runs = E('div', {});
		this.choice = E('select', { 'class': 'cbi-input-select', 'aria-label': t('Task'), 'change': event => {
			this.shown.task = event.target.value;
			this.shown.runPages = 1;
			this.refresh();
		} }, []);
		const states = E('select', { 'class': 'cbi-input-select', 'aria-label': t('Status'), 'change': event => {
			this.shown.status = event.target.value;
			this.shown.runPages = 1;
			this.refresh();
		} }, [ E('option', { 'value': '' }, [ t('All states') ]) ].concat(
			[ 'queued', 'running', 'retry_wait' ].concat(ENDED).map(each => E('option', { 'value': each }, [ t(each) ]))
		));
		this.fill(data);
		poll.add(() => this.refresh(), 10);
		return E('div', { 'class': 'cbi-map qle' }, [
			E('style', {}, [ STYLE ]),
			E('h2', { 'name': 'content' }, [ 'QingLong Edge' ]),
			E('div', { 'class': 'cbi-map-descr' }, [
				t('Durable scheduled tasks: every run is recorded, survives a crash of the scheduler, and keeps a bounded log.')
			]),
			this.bar,
			E('div', { 'class': 'qle-head' }, [ E('h3', {}, [ t('Tasks') ]) ]),
			this.tasks,
			E('div', { 'class': 'qle-head' }, [ E('h3', {}, [ t('Runs') ]), this.choice, states ]),
			this.runs
		]);
	},

	fill: function(data) {
		dom.content(this.bar, this.statusBar(data));
		if (data.error)
			return;
		dom.content(this.tasks, this.taskTable(data));
		dom.content(this.runs, this.runTable(data));
		const names = data.tasks.map(each => each.task), known = JSON.stringify(names);
		if (known === this.known) /* an open list is not replaced under the reader's hand */
			return;
		this.known = known;
		dom.content(this.choice, [ E('option', { 'value': '' }, [ t('All tasks') ]) ].concat(names.map(
			name => E('option', { 'value': name, 'selected': name === this.shown.task ? '' : null }, [ name ])
		)));
	},

	statusBar: function(data) {
		if (data.error) {
			const down = data.error.code === 'daemon_down';
			return E('div', { 'class': 'qle-bar qle-down' }, [
				E('strong', {}, [ t(down ? 'The scheduler is not running' : 'The scheduler did not answer') ]),
				down ? E('span', {}, [ t('Start it with:'), ' ', E('code', {}, [ '/etc/init.d/qinglong-edge start' ]) ])
					: E('span', {}, [ data.error.message ])
			]);
		}
		const status = data.status, facts = [], troubles = status.degraded || [];
		facts.push(`${status.tasks} ${t('tasks')}`);
		if (status.next)
			facts.push(`${t('next')}: ${moment(status.next.at_ms)} ${status.next.task || ''}`);
		facts.push(`${t('memory')} ${size(status.rss_bytes)}`);
		facts.push(`${size(status.free_bytes)} ${t('free')}`);
		const paused = status.paused === true;
		const parts = [ E('strong', {}, [ t(paused ? 'Schedules are paused' : 'The scheduler is running') ]) ]
			.concat(facts.map(fact => E('span', { 'class': 'qle-fact' }, [ fact ])));
		if (status.clock)
			parts.push(E('span', {}, [ t('The clock is not trusted yet'), ' ', E('code', {}, [ status.clock ]) ]));
		if (troubles.length)
			parts.push(E('span', {}, [ t('Needs attention:'), ' ' ].concat(troubles.map(each => E('code', {}, [ each ])))));
		parts.push(E('span', { 'class': 'qle-grow' }, []));
		parts.push(paused ? this.button(t('Resume schedules'), 'cbi-button-positive', () => this.act(call.resume))
			: this.button(t('Pause schedules'), 'cbi-button-neutral', () => this.act(call.pause)));
		return E('div', { 'class': `qle-bar${paused || status.clock || troubles.length ? ' qle-warn' : ''}` }, parts);
	},

	taskTable: function(data) {
		if (!data.tasks.length)
			return E('div', { 'class': 'qle-none' }, [
				E('p', {}, [ t('No tasks yet.'), ' ', t('Add one on the command line:') ]),
				E('code', {}, [ "qinglong-edge task add hello --cron '*/5 * * * *' --shell 'echo hello'" ])
			]);
		const rows = data.tasks.map(each => E('tr', { 'class': each.enabled ? '' : 'qle-off' }, [
			cell(t('Task'), 'qle-name', [ each.task ].concat(each.enabled ? [] : [ E('span', { 'class': 'qle-tag' }, [ t('disabled') ]) ])),
			cell(t('Schedule'), 'qle-when', each.triggers.length ? each.triggers.map(one => E('div', { 'title': one.zone || '' },
				[ schedule(one) ].concat(one.parked ? [ E('span', { 'class': 'qle-tag' }, [ `${t('parked')}: ${one.parked}` ]) ] : []))) : [ t('manual') ]),
			cell(t('Next run'), `qle-num${each.next_ms == null ? ' qle-empty' : ''}`, each.next_ms == null ? [ '–' ] : [
				E('span', { 'title': exact(each.next_ms) }, [ moment(each.next_ms) ]), ' ',
				E('span', { 'class': 'qle-soft' }, [ until(each.next_ms, data.now_ms) ])
			]),
			cell(t('Last run'), `qle-num${each.last ? '' : ' qle-empty'}`, each.last ? [ state(each.last.status), ' ',
				E('span', { 'class': 'qle-soft' }, [ `#${each.last.run}` ]) ] : [ '–' ]),
			E('td', { 'class': 'qle-do' }, [
				each.last ? this.button(t('Log'), 'cbi-button-neutral', () => this.openLog(each.last.run, each.task)) : '',
				this.button(t(each.enabled ? 'Disable' : 'Enable'), 'cbi-button-neutral',
					() => this.act(each.enabled ? call.disable : call.enable, each.task)),
				this.button(t('Start'), 'cbi-button-action', () => this.act(call.start, each.task))
			])
		]));
		return E('div', {}, [
			table([ t('Task'), t('Schedule'), t('Next run'), t('Last run'), '' ], rows),
			this.more(data.tasks_next, 'taskPages')
		]);
	},

	runTable: function(data) {
		if (!data.runs.length)
			return E('div', { 'class': 'qle-none' }, [ t('No runs yet.') ]);
		const rows = data.runs.map(each => {
			const ended = ENDED.includes(each.status);
			return E('tr', {}, [
				cell(t('Task'), 'qle-name', [ each.task || '–', E('span', { 'class': 'qle-soft' }, [ ` #${each.run}` ]) ]),
				cell('', '', [ state(each.status) ].concat(each.error && each.exit == null && each.error.toLowerCase() !== each.status ? [ E('span', { 'class': 'qle-tag' }, [ each.error ]) ] : [])),
				cell(t('Started'), 'qle-num', [ E('span', { 'title': exact(each.started_ms) }, [ moment(each.started_ms || each.created_ms) ]) ]),
				cell(t('Took'), 'qle-num', [ length(each.duration_ms != null ? each.duration_ms
					: each.status === 'running' && each.started_ms != null ? Math.max(0, Number(data.now_ms) - Number(each.started_ms)) : null) ]),
				cell(t('Exit'), `qle-num${each.exit == null ? ' qle-empty' : ''}`, [ each.exit == null ? '–' : each.exit ]),
				E('td', { 'class': 'qle-do' }, [
					ended ? '' : this.button(t('Stop'), 'cbi-button-negative', () => this.askStop(each)),
					this.button(t('Log'), 'cbi-button-neutral', () => this.openLog(each.run, each.task))
				])
			]);
		});
		return E('div', {}, [
			table([ t('Task'), t('Status'), t('Started'), t('Took'), t('Exit'), '' ], rows),
			this.more(data.runs_next, 'runPages')
		]);
	},

	more: function(next, pages) {
		return next == null ? '' : E('div', { 'class': 'qle-more' }, [
			this.button(t('Show more'), 'cbi-button-neutral', () => {
				this.shown[pages]++;
				return this.refresh();
			})
		]);
	},

	askStop: function(run) {
		ui.showModal(t('Stop this run?'), [
			E('p', {}, [ `${run.task || '–'} #${run.run}` ]),
			E('p', {}, [ t('Its processes get TERM, then KILL.') ]),
			E('div', { 'class': 'right' }, [
				this.button(t('Cancel'), 'cbi-button-neutral', () => ui.hideModal()), ' ',
				this.button(t('Stop'), 'cbi-button-negative', () => {
					ui.hideModal();
					return this.act(call.stop, run.run);
				})
			])
		]);
	},

	/* The end of a log; while its run goes on the box follows it, unless the reader scrolled up. */
	openLog: function(run, task) {
		const text = E('pre', { 'class': 'qle-log', 'tabindex': '0' }, []), facts = E('span', { 'class': 'qle-soft' }, []);
		const look = () => call.log(run, '', LOG_BYTES).then(answer => {
			const below = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
			dom.content(facts, this.logFacts(answer));
			text.textContent = answer.error ? `${answer.error.message} (${answer.error.code})`
				: answer.retired_ms != null ? t('The log was removed to make room.')
				: answer.text || t(answer.none ? 'This run keeps no log.' : 'Nothing was written yet.');
			if (below)
				text.scrollTop = text.scrollHeight;
			if (!answer.error && !answer.ended && document.body.contains(text))
				window.setTimeout(look, 3000);
		}, error => { text.textContent = String(error.message || error); });
		ui.showModal(`${task || '–'} #${run}`, [
			E('div', { 'class': 'qle' }, [ facts, text ]),
			E('div', { 'class': 'right' }, [ this.button(t('Close'), 'cbi-button-neutral', () => ui.hideModal()) ])
		]);
		return look();
	},

	logFacts: function(answer) {
		if (answer.error || answer.none)
			return [];
		const parts = [ state(answer.status), ' ' ];
		if (answer.total != null)
			parts.push(Number(answer.total) > Number(LOG_BYTES) ? `${t('last')} ${size(LOG_BYTES)} / ${size(answer.total)}` : size(answer.total));
		if (answer.truncated === true)
			parts.push(`, ${t('cut at its quota')}`);
		return parts;
	}
});
