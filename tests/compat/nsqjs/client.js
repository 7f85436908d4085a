// nsqjs behind the dialogue of tests/compat/driver.py.

'use strict'

const fs = require('fs')
const readline = require('readline')

const nsq = require('nsqjs')

const job = JSON.parse(process.argv[2])

// nsqjs 0.13 listens to no error of its inflater: when a connection with deflate ends, whatever the
// broker, zlib misses the stream's last block, and the process would end with it.
process.on('uncaughtException', (error) => {
  process.stderr.write(`${error.stack}\n`)
  if (error.code !== 'Z_BUF_ERROR') process.exit(1)
})

function say(event, more) {
  process.stdout.write(JSON.stringify(Object.assign({event}, more)) + '\n')
}

function options() {
  const given = {snappy: job.snappy, deflate: job.deflate, tls: job.tls}
  if (job.tls) given.ca = fs.readFileSync(job.ca)
  if (job.secret) given.authSecret = job.secret
  return given
}

function onOrder(handle) {
  readline.createInterface({input: process.stdin}).on('line', (line) => {
    const order = JSON.parse(line)
    order.bodies = order.bodies.map((body) => Buffer.from(body, 'base64'))
    handle(order)
  })
}

function produce() {
  let writer
  let said = false
  let stopping = false

  // A writer does not reconnect by itself; its users do it, as here.
  function connect() {
    writer = new nsq.Writer(job.host, job.port, options())
    writer.on('ready', () => {
      if (!said) say('ready')
      said = true
    })
    writer.on('error', (error) => process.stderr.write(`${error}\n`))
    writer.on('closed', () => {
      if (stopping) return
      say('closed')
      setTimeout(connect, 200)
    })
    writer.connect()
  }

  function whenReady(act) {
    if (writer.ready) act()
    else setTimeout(() => whenReady(act), 50)
  }

  function publish(order) {
    const answered = (error) => (error ? say('failed', {why: `${error}`}) : say('published'))
    if (order.do === 'mpublish') {
      writer.publish(job.topic, order.bodies, answered)
    } else if (order.do === 'dpublish') {
      // It takes a list here, whatever its documentation says.
      writer.deferPublish(job.topic, order.bodies, order.delay_ms, answered)
    } else {
      let left = order.bodies.length
      let failed = null
      for (const body of order.bodies) {
        writer.publish(job.topic, body, (error) => {
          failed = failed || error
          left -= 1
          if (left === 0) answered(failed)
        })
      }
    }
  }

  connect()
  onOrder((order) => {
    if (order.do === 'stop') {
      stopping = true
      writer.close()
      process.exit(0)
    }
    whenReady(() => publish(order))
  })
}

function consume() {
  const reader = new nsq.Reader(
    job.topic,
    job.channel,
    Object.assign(options(), {
      ...(job.lookup
        ? {lookupdHTTPAddresses: job.lookup}
        : {nsqdTCPAddresses: `${job.host}:${job.port}`}),
      maxInFlight: job.max_in_flight,
      lookupdPollInterval: 1, // also how often it tries to reconnect
      maxBackoffDuration: 1,
    })
  )
  let said = false
  reader.on('ready', () => {
    if (!said) say('ready')
    said = true
  })
  reader.on('error', (error) => process.stderr.write(`${error}\n`))
  reader.on('nsqd_closed', () => say('closed'))
  reader.on('message', (message) => {
    const body = message.body.toString('base64')
    const start = message.body.toString('latin1')
    say('message', {body, attempts: message.attempts})
    if (start.startsWith('requeue') && message.attempts === 1) {
      message.requeue(100, false)
    } else if (start.startsWith('touch')) {
      setTimeout(() => message.touch(), 1200)
      setTimeout(() => {
        message.finish()
        say('finished', {body})
      }, 2400)
    } else {
      message.finish()
      say('finished', {body})
    }
  })
  reader.connect()
  onOrder((order) => {
    if (order.do !== 'stop') return
    reader.close()
    setTimeout(() => process.exit(0), 100) // its FINs leave at the next tick
  })
}

if (job.role === 'producer') produce()
else consume()
